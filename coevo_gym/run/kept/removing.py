"""Deletion of whole runs, tables and evaluations."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from coevo_gym.core.errors import ConfigError
from coevo_gym.run.kept.state import size_of
from coevo_gym.store.deleting import check_deletable, delete
from coevo_gym.store.eval_folder import EVALS, EvalFolder
from coevo_gym.store.folder import RUNS, RunFolder, locked, storing


@dataclass(frozen=True)
class Removable:
    """A run, table or evaluation to delete.

    Attributes:
        path: its folder.
        kind: ``run``, ``table`` or ``evaluation``.
        folders: folders to lock during the deletion.
        size: size in bytes.
    """

    path: Path
    kind: str
    folders: tuple[Path, ...]
    size: int


def find_kept(name: str) -> Removable:
    """Return the run, table or evaluation with this name or path.

    Raises:
        ConfigError: if it does not exist, the name is ambiguous, or the path is a link.
    """
    found = [kept for kept in (_run(name), _table(name), _evaluation(name)) if kept is not None]
    if not found:
        raise ConfigError(
            f"There is no run, table or evaluation {name!r}. `coevo runs list` lists them."
        )
    if len(found) > 1:
        paths = " or ".join(str(kept.path) for kept in found)
        raise ConfigError(f"{name} is a {' and an '.join(k.kind for k in found)}: say {paths}.")
    (kept,) = found
    check_deletable(kept.path, RUNS, EVALS)
    return kept


def remove(kept: Removable) -> None:
    """Delete a run, table or evaluation unless a process is writing to it.

    Raises:
        ConfigError: if the path has become a link.
        StoreError: if a process is writing to it, or it cannot be deleted.
    """
    check_deletable(kept.path, RUNS, EVALS)
    with ExitStack() as locks:
        for folder in kept.folders:
            locks.enter_context(locked(folder))
        with storing(kept.path):
            delete(kept.path)


def _run(name: str) -> Removable | None:
    found = RunFolder.find(name) if name else None
    if found is None or not found.is_run():
        return None
    return _kept("run", found.path, (found.path,))


def _table(name: str) -> Removable | None:
    for path in (RUNS / name, Path(name)) if name else ():
        # Only a folder of runs, and nothing above: one that has a name of its own in runs/.
        runs = RunFolder.of_table(path)
        inside = [run.path for run in runs if run.is_run() and not run.path.is_symlink()]
        if inside and path.resolve().parent == RUNS.resolve():
            return _kept("table", path, tuple(inside))
    return None


def _evaluation(name: str) -> Removable | None:
    found = EvalFolder.find(name) if name else None
    if found is None or not found.is_evaluation():
        return None
    return _kept("evaluation", found.path, (found.path,))


def _kept(kind: str, path: Path, folders: tuple[Path, ...]) -> Removable:
    return Removable(path, kind, folders, size_of(path))
