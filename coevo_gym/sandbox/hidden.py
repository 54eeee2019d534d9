"""What is left of readable folders when some folders in them are hidden."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Parts(NamedTuple):
    """A folder without what is hidden in it.

    Attributes:
        whole: files and folders without anything hidden.
        opened: folders that lead to something hidden; of these, only names are left.
    """

    whole: tuple[str, ...]
    opened: tuple[str, ...]


def inside(root: str, hidden: Iterable[Path]) -> tuple[str, ...]:
    """The hidden folders that lie in another one, by the paths that lead through it."""
    real = Path(root).resolve()
    found = (path.resolve() for path in hidden if path.is_dir())
    within = (path.relative_to(real) for path in found if real in path.parents)
    return tuple(sorted({str(Path(root) / path) for path in within}))


def without(root: str, hidden: Sequence[str]) -> Parts:
    """Take a folder apart, so that what is hidden in it is left out.

    Args:
        root: the folder, or a file.
        hidden: folders in it, as :func:`inside` tells them.
    """
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
