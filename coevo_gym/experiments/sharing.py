"""A start that cells share: the warm-up of a seed, and the first tasks that were found for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from coevo_gym.core.errors import StoreError
from coevo_gym.core.evolution import Round
from coevo_gym.experiments.cells import Cell, shared
from coevo_gym.run.manifest import read_manifest
from coevo_gym.run.table import WARMUP
from coevo_gym.store.database import RunStore
from coevo_gym.store.folder import RunFolder, append_line, read_lines, storing


def take_over(cell: Cell, others: Iterable[RunFolder]) -> RunFolder | None:
    """Put into a cell that is about to begin what an equal run has done already.

    That is the checkpoint of the warm-up, with the baselines in it, and what the first round gave,
    which counts for equal rounds alone. Runs are equal here if all their settings are but those of
    the arm, the code's version among them.

    Args:
        cell: with a manifest, and nothing done.
        others: runs of the same table.

    Returns:
        Where the start comes from; None if no run has one.

    Raises:
        StoreError: if it cannot be written.
    """
    manifest, _ = read_manifest(cell.folder)
    wanted = shared(cell.config)
    for other in others:
        if other.path == cell.folder.path or not other.manifest.is_file():
            continue
        found = sorted((other.checkpoints / WARMUP).glob("step-*.pt"))
        if not found:
            continue
        theirs, config = read_manifest(other)
        if shared(config) != wanted or any(
            theirs.get(part) != manifest[part] for part in ("versions", "git_commit", "task_sets")
        ):
            continue
        _take_rounds(cell.folder, other)
        _take_lines(cell.folder, other)
        _link(found[-1], cell.folder.checkpoints / WARMUP)  # the last: it says that all is there
        return other
    return None


def _take_rounds(ours: RunFolder, theirs: RunFolder) -> None:
    if theirs.database.is_file():
        with closing(RunStore(ours.database)) as store:
            store.add_results_of(theirs.database, Round.unguided(1).id)


def _take_lines(ours: RunFolder, theirs: RunFolder) -> None:
    for line in read_lines(theirs.metrics):
        if line.get("event") == WARMUP:
            append_line(ours.metrics, line)


def _link(file: Path, folder: Path) -> None:
    """The same file under another folder, and a copy where there are no hard links."""
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / file.name
        try:
            os.link(file, target)
        except OSError:
            part = folder / f".{file.name}.part"
            shutil.copyfile(file, part)
            part.replace(target)


def beside(cell: Cell) -> list[RunFolder]:
    """The other runs of a cell's table, of its seed.

    Raises:
        StoreError: if the folder cannot be read.
    """
    try:
        paths = sorted(path for path in cell.folder.path.parent.iterdir() if path.is_dir())
    except OSError as error:
        raise StoreError(f"Cannot read {cell.folder.path.parent}: {error.strerror}.") from error
    same = [path for path in paths if path.name.endswith(f"-{cell.seed}")]
    return [RunFolder(path) for path in same]
