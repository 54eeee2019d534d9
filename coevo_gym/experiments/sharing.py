"""Reuse of a start that cells share: the warm-up of a seed and its first tasks."""

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
    """Copy the finished start of an equal run into a new cell.

    The start consists of the warm-up checkpoint, including the baselines, and the result of the
    first round, which is reused only for an equal round. Two runs are equal here if all settings
    except those of the arm, and the version of the code, are equal.

    Args:
        cell: a cell with a manifest and without any progress.
        others: runs of the same table.

    Returns:
        The run that the start comes from; None if no run has one.

    Raises:
        StoreError: if the start cannot be written.
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
        # last, because it marks the start as complete
        _link(found[-1], cell.folder.checkpoints / WARMUP)
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
    """Link a file into another folder, or copy it if hard links are not supported."""
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
    """Return the other runs of a cell's table with the same seed.

    Raises:
        StoreError: if the folder cannot be read.
    """
    try:
        paths = sorted(path for path in cell.folder.path.parent.iterdir() if path.is_dir())
    except OSError as error:
        raise StoreError(f"Cannot read {cell.folder.path.parent}: {error.strerror}.") from error
    same = [path for path in paths if path.name.endswith(f"-{cell.seed}")]
    return [RunFolder(path) for path in same]
