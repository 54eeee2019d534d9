"""Deleting runs, tables and evaluations as a whole."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from coevo_gym.core.errors import ConfigError
from coevo_gym.run.kept.state import size_of
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.folder import RUNS, RunFolder, locked, storing


@dataclass(frozen=True)
class Kept:
    """Something that can be deleted.

    Attributes:
        path: its folder.
        kind: ``run``, ``table`` or ``evaluation``.
        folders: those whose locks are held while it is deleted.
        size: bytes.
    """

    path: Path
    kind: str
    folders: tuple[Path, ...]
    size: int


def find_kept(name: str) -> Kept:
    """The run, the table or the evaluation of this name or path.

    Raises:
        ConfigError: if there is none, if it could be two things, or if it is a link.
    """
    found = [kept for kept in (_run(name), _table(name), _evaluation(name)) if kept is not None]
    if not found:
        raise ConfigError(
            f"There is no run, table or evaluation {name!r}. `coevo runs list` says what there is."
        )
    if len(found) > 1:
        paths = " or ".join(str(kept.path) for kept in found)
        raise ConfigError(f"{name} is a {' and an '.join(k.kind for k in found)}: say {paths}.")
    (kept,) = found
    if kept.path.is_symlink():
        raise ConfigError(f"{kept.path} is a link. Delete it, or what it leads to, yourself.")
    return kept


def remove(kept: Kept) -> None:
    """Delete it, unless some process writes to it.

    Raises:
        StoreError: if one does, or if it cannot be deleted.
    """
    with ExitStack() as locks:
        for folder in kept.folders:
            locks.enter_context(locked(folder))
        with storing(kept.path):
            shutil.rmtree(kept.path)


def _run(name: str) -> Kept | None:
    found = RunFolder.find(name) if name else None
    return None if found is None else _kept("run", found.path, (found.path,))


def _table(name: str) -> Kept | None:
    for path in (RUNS / name, Path(name)) if name else ():
        # Only a folder of runs, and nothing above: one that has a name of its own in runs/.
        inside = [run.path for run in RunFolder.of_table(path)]
        if inside and path.resolve().parent == RUNS.resolve():
            return _kept("table", path, tuple(inside))
    return None


def _evaluation(name: str) -> Kept | None:
    found = EvalFolder.find(name) if name else None
    return None if found is None else _kept("evaluation", found.path, (found.path,))


def _kept(kind: str, path: Path, folders: tuple[Path, ...]) -> Kept:
    return Kept(path, kind, folders, size_of(path))
