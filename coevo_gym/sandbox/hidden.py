"""The parts of readable folders that stay visible when some of their subfolders are hidden."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Parts(NamedTuple):
    """The parts of a folder that stay visible when some of its subfolders are hidden.

    ``whole`` are files and folders that contain nothing hidden. ``opened`` are folders that contain
    something hidden; only their names stay visible.
    """

    whole: tuple[str, ...]
    opened: tuple[str, ...]


def inside(root: str, hidden: Iterable[Path]) -> tuple[str, ...]:
    """Return the paths of the hidden folders inside a root folder. They begin with ``root``."""
    real = Path(root).resolve()
    found = (path.resolve() for path in hidden if path.is_dir())
    within = (path.relative_to(real) for path in found if real in path.parents)
    return tuple(sorted({str(Path(root) / path) for path in within}))


def without(root: str, hidden: Sequence[str]) -> Parts:
    """Return the visible paths under ``root``. ``hidden`` is the result of :func:`inside`."""
    if root in hidden:
        return Parts((), ())
    if not any(Path(root) in Path(path).parents for path in hidden):
        return Parts((root,), ())
    paths = [os.path.join(root, name) for name in sorted(os.listdir(root))]
    parts = [without(path, hidden) for path in paths if not os.path.islink(path)]
    return Parts(
        tuple(path for part in parts for path in part.whole),
        (root, *(path for part in parts for path in part.opened)),
    )
