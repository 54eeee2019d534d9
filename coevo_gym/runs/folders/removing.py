"""Functions for deleting whole runs, tables and evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.runs.folders.listing import size_of, state_of_run
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.eval_folder import EVALS, EvalFolder
from coevo_gym.store.folder import (
    LOCK,
    RUNS,
    RunFolder,
    delete,
    is_in_use,
    lock_folder,
    raise_store_errors,
    refuse_links,
    resolve_if_linked,
)
from coevo_gym.store.progress_file import PROGRESS


@dataclass(frozen=True)
class Removable:
    """A run, table or evaluation to delete.

    Attributes:
        path: path of the folder.
        kind: ``run``, ``table`` or ``evaluation``.
        folders: folders to lock during the deletion.
        size: size in bytes.
    """

    path: Path
    kind: str
    folders: tuple[Path, ...]
    size: int


def find_removable(name: str) -> Removable:
    """Return the run, table or evaluation with this name or path.

    Raises:
        ConfigError: if it does not exist, the name is ambiguous, or the path is a link.
    """
    items = list(_find_by_name(name))
    if not items:
        raise ConfigError(
            f"There is no run, table or evaluation named {name!r}. See `coevo runs list`."
        )
    if len(items) > 1:
        paths = " or ".join(str(item.path) for item in items)
        raise ConfigError(f"The name {name!r} is ambiguous. Use {paths}.")
    (item,) = items
    refuse_links(item.path, RUNS, EVALS)
    return item


def cells_using(item: Removable) -> list[Path]:
    """Return the cells of other tables that are links into a folder, and would have to be run."""
    links = (path for root in (RUNS, EVALS) for path in sorted(root.glob("*/*")))
    target = item.path.resolve()
    return [
        link
        for link in links
        if link.is_symlink()
        and link.resolve().is_relative_to(target)
        and not link.parent.resolve().is_relative_to(target)
    ]


def delete_removable(item: Removable) -> None:
    """Delete a run, table or evaluation unless a process is writing to it.

    Raises:
        ConfigError: if the path has become a link.
        StoreError: if a process is writing to it, or it cannot be deleted.
    """
    refuse_links(item.path, RUNS, EVALS)
    with ExitStack() as locks:
        for folder in item.folders:
            locks.enter_context(lock_folder(folder))
        with raise_store_errors(item.path):
            delete(item.path)


def _find_by_name(name: str) -> Iterator[Removable]:
    """Yield every run, table and evaluation with this name or path."""
    if not name:
        return
    run, evaluation = RunFolder.find(name), EvalFolder.find(name)
    if run is not None and run.is_run():
        yield Removable(run.path, "run", (run.path,), size_of(run.path))
    for path in dict.fromkeys((RUNS / name, EVALS / name, Path(name))):
        # Only a folder of cells directly in runs/ or evals/ is a table, never a folder above it.
        cells, root = _cells_of_table(path), path.resolve().parent
        if cells and root in (RUNS.resolve(), EVALS.resolve()):
            own = tuple(cell for cell in cells if not cell.is_symlink())
            yield Removable(path, "table", own, size_of(path))
    if evaluation is not None and evaluation.is_evaluation():
        path = evaluation.path
        yield Removable(path, "evaluation", (path,), size_of(path))


def _cells_of_table(table: Path) -> list[Path]:
    """Return the folders of the runs or evaluations in a table's folder."""
    runs = [cell.path for cell in RunFolder.of_table(table) if cell.is_run()]
    return runs or [cell.path for cell in EvalFolder.of_table(table) if cell.is_evaluation()]


OLD, DAMAGED, PART, EMPTY = (
    "an older checkpoint of a finished run",
    "a damaged checkpoint",
    "left by a process that was killed",
    "contains no run or evaluation",
)


@dataclass(frozen=True)
class Freeable:
    """A file or folder that can be removed.

    Attributes:
        path: path of the file or folder.
        why: reason why the file is not needed.
        folder: folder of the run or evaluation that it belongs to.
        size: size in bytes.
    """

    path: Path
    why: str
    folder: Path
    size: int


def find_freeable() -> list[Freeable]:
    """Return all files that can be removed.

    Folders that a process is writing to and everything behind a link are left out.
    """
    runs = [RunFolder(RUNS / name) for name in RunFolder.names()]
    runs += [run for table in RunFolder.table_folders() for run in RunFolder.of_table(table)]
    runs = [run for run in runs if run.is_run() and not is_in_use(run.path)]
    items = [item for run in runs for item in _freeable_in_run(run)]
    evals = [EvalFolder(EVALS / name) for name in EvalFolder.names()]
    evals += [one for table in EvalFolder.table_folders() for one in EvalFolder.of_table(table)]
    for folder in evals:
        if folder.is_evaluation() and not is_in_use(folder.path):
            items += _partial_files(folder.path, folder.path)
    items = [item for item in items if not resolve_if_linked(item.path, RUNS, EVALS)]
    for root in (RUNS, EVALS):
        if root.is_dir():
            items += [
                Freeable(path, EMPTY, path, size_of(path))
                for path in sorted(root.iterdir())
                if _is_leftover(path) and not is_in_use(path)
            ]
    return items


def delete_freeable(items: list[Freeable]) -> int:
    """Delete the given files and folders, and return their total size in bytes.

    Folders that a process has started to write to since are skipped.

    Raises:
        StoreError: if a file cannot be deleted.
    """
    freed = 0
    for item in items:
        if not item.path.exists() or resolve_if_linked(item.path, RUNS, EVALS):
            continue
        try:
            lock = lock_folder(item.folder)
            with lock, raise_store_errors(item.path):
                delete(item.path)
        except StoreError:
            if is_in_use(item.folder):
                continue
            raise
        freed += item.size
    return freed


def _freeable_in_run(folder: RunFolder) -> Iterator[Freeable]:
    yield from _partial_files(folder.path, folder.path)
    finished = state_of_run(folder)[0] == "finished"
    for phase in sorted(folder.checkpoints.glob("**/")):
        yield from _partial_files(phase, folder.path)
        for path in sorted(phase.glob("step-*.damaged")):
            yield Freeable(path, DAMAGED, folder.path, size_of(path))
        if finished:
            for path in Checkpoints(phase).files_before_latest_intact():
                yield Freeable(path, OLD, folder.path, size_of(path))


def _partial_files(folder: Path, of: Path) -> Iterator[Freeable]:
    """Yield the partial files left by processes that were killed while writing."""
    for path in sorted(folder.glob(".*.part")):
        yield Freeable(path, PART, of, size_of(path))


def _is_leftover(folder: Path) -> bool:
    """Return True if a folder contains nothing but a lock, a progress file and partial files."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    with suppress(OSError):
        names = {path.name for path in folder.iterdir()}
        return all(name in (LOCK, PROGRESS) or name.endswith(".part") for name in names)
    return False
