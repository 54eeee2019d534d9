"""A runner for experiment tables that starts missing runs and resumes interrupted runs."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from time import monotonic

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Round
from coevo_gym.runs.experiments.cells import (
    Cell,
    CellCounts,
    Chosen,
    settings_affecting_result,
    settings_of_shared_start,
)
from coevo_gym.runs.experiments.measures import TRANSFER, measure_run, missing_measures
from coevo_gym.runs.experiments.records import CellRecord
from coevo_gym.runs.manifest import (
    IDENTITY,
    arithmetic_in,
    freeze_arithmetic_for,
    read_manifest,
)
from coevo_gym.runs.planning.cost import estimate_costs, refuse_if_paid
from coevo_gym.runs.progress_reports import PartProgress, ProgressSink
from coevo_gym.runs.stop import Stopped, StopRequest
from coevo_gym.runs.table import WARMUP
from coevo_gym.runs.train import RunIdentity, identify_new_run, resume, train
from coevo_gym.store.database import RunStore
from coevo_gym.store.folder import (
    RunFolder,
    append_line,
    raise_store_errors,
    read_json,
    read_lines,
    write_json,
)
from coevo_gym.store.links import link_cell, remove_dead_link


def copy_shared_start(cell: Cell) -> RunFolder | None:
    """Copy a matching run's warm-up and first round into the folder of a new run.

    The copy has the warm-up checkpoint, with the baselines, and the first round's result, which is
    reused only for an identical round. A run of the same table matches if its seed, its code
    version and all settings except the arm's are equal. The cell has a manifest, but no progress.

    Returns:
        The run that was copied; None if no run matches.

    Raises:
        StoreError: if the copy cannot be written.
    """
    manifest, _ = read_manifest(cell.folder)
    wanted, here = settings_of_shared_start(cell.config), freeze_arithmetic_for(cell.config)
    for other in RunFolder.of_table(cell.folder.path.parent):
        if other.path == cell.folder.path or not other.path.name.endswith(f"-{cell.seed}"):
            continue
        checkpoints = sorted((other.checkpoints / WARMUP).glob("step-*.pt"))
        if not checkpoints:
            continue
        theirs, config = read_manifest(other)
        if settings_of_shared_start(config) != wanted or any(
            theirs.get(part) != manifest[part] for part in ("versions", "git_commit", "task_sets")
        ):
            continue
        if not arithmetic_in(theirs).computes_same_bits_as(here):
            continue
        if other.database.is_file():
            with closing(RunStore(cell.folder.database)) as store:
                store.copy_results(other.database, Round.unguided(1).id)
        for line in read_lines(other.metrics):
            if line.get("event") == WARMUP:
                append_line(cell.folder.metrics, line)
        # last, because it marks the start as complete
        _link_or_copy(checkpoints[-1], cell.folder.checkpoints / WARMUP)
        return other
    return None


def _link_or_copy(file: Path, folder: Path) -> None:
    """Link a file into another folder, or copy it if hard links are not supported."""
    with raise_store_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / file.name
        try:
            os.link(file, target)
        except OSError:
            part = folder / f".{file.name}.part"
            shutil.copyfile(file, part)
            part.replace(target)


def require_measures(
    record: CellRecord, measures: Sequence[str], parts: Sequence[str] = ()
) -> None:
    """Check that a finished experiment cell has all metrics.

    Raises:
        ConfigError: if one is missing.
    """
    missing = [name for _, name in missing_measures(record.measures, measures, parts)]
    if missing:
        raise ConfigError(
            f"{record.name} ({record.where}) has no values for {', '.join(missing)}. They can only "
            "be computed from the original run. On the machine that stores the run, run "
            "`coevo experiment` again for this row and seed, without --from."
        )


def run_cells(
    chosen: Chosen,
    cells: Sequence[Cell],
    progress: ProgressSink,
    stop: StopRequest,
    *,
    agreed: bool = False,
    fresh: bool = False,
) -> CellCounts:
    """Run all unfinished cells of an experiment table in order, and measure each cell.

    All cells are checked before the first cell is started. ``stop`` is checked at every step
    boundary, and ``agreed`` is True if the user has agreed to the cost of model calls. A new cell
    that another table has finished becomes a link to that cell, unless ``fresh`` is True.

    Raises:
        Stopped: if a stop was requested; finished work is saved.
        ConfigError: if a cell was run with different settings, a cell from a file lacks a measure,
            or the user has not agreed to the cost of a cell.
        CoevoError: if a cell fails; earlier cells are kept.
    """
    measures, parts = chosen.experiment.measures, chosen.parts_shown_elsewhere()
    for cell in cells:
        if cell.state != "finished" and not agreed:
            refuse_if_paid(estimate_costs(cell.config))
        if cell.kept is not None:
            require_measures(cell.kept, measures, parts.get(cell.row.name, ()))
    counts, spent = CellCounts(), list[float]()
    left = sum(cell.state != "finished" for cell in cells)
    if left:
        progress.say(f"{left} of {len(cells)} cells will be run.")
    for number, cell in enumerate(cells, start=1):
        if stop():
            raise Stopped
        remove_dead_link(cell.folder.path)
        state, started = cell.state, monotonic()
        reporter = PartProgress(progress, f"[{number}/{len(cells)}] {cell.name}")
        if state != "finished":
            later_s = sum(spent) / len(spent) * (left - 1) if spent else None
            progress.begin_part(number, len(cells), cell.name, later_s if left > 1 else 0.0)
        if state == "finished":
            counts.there += 1
        elif state == "cut":
            resume(cell.folder, reporter, stop)
            counts.resumed += 1
        elif not fresh and (there := _use_identical_run(cell, measures)):
            progress.say(f"{reporter.name}: the identical run {there.path} is used.")
            counts.used += 1
            state, left = "finished", left - 1
        else:
            _run_new_cell(cell, reporter, stop)
            counts.new += 1
        if cell.kept is None:
            others, also = chosen.experiment.others, parts.get(cell.row.name, ())
            measure_run(cell.folder, cell.row.name, measures, others, also)
        if state != "finished":
            spent.append(monotonic() - started)
            left -= 1
            _say_time_left(progress, reporter.name, spent, left)
            gc.collect()  # free the run now: its reference cycles would keep the memory
    return counts


def _use_identical_run(cell: Cell, measures: Sequence[str]) -> RunFolder | None:
    """Link a cell to another table's identical run, and return this run; None if there is none."""
    if TRANSFER in measures:  # its stored value depends on the table
        return None
    there = find_identical_run(cell)
    return there if there is not None and link_cell(cell.folder.path, there.path) else None


def find_identical_run(cell: Cell) -> RunFolder | None:
    """Return the finished run of another table that is identical to a new cell, or None.

    Everything must be equal that the result depends on: the settings, the row, the seed, the tasks,
    the versions of packages, the rounding of numbers, the source code, the data of the benchmark
    and the files of models. Nothing is identical to a run with a model on a hub, whose files may
    change.
    """
    table, wanted = cell.folder.path.parent, settings_affecting_result(cell.config)
    mine: RunIdentity | None = None
    for path in sorted(table.parent.glob(f"*/{cell.name}/{IDENTITY}")):
        other = RunFolder(path.parent)
        linked = other.path.is_symlink() or other.path.parent == table
        if linked or not (other.summary.is_file() and other.manifest.is_file()):
            continue
        manifest, config = read_manifest(other)
        if settings_affecting_result(config) != wanted:
            continue
        mine = mine or identify_new_run(cell.resolved)
        if (
            read_json(path) == mine.hashes
            and "" not in mine.hashes.values()
            and len(manifest["arithmetic"]) == 1
            and arithmetic_in(manifest).computes_same_bits_as(arithmetic_in(mine.manifest))
            and all(manifest.get(part) == mine.manifest.get(part) for part in _IDENTICAL)
        ):
            return other
    return None


_IDENTICAL = ("schema", "model", "prompt", "plugins", "code", "task_sets", "versions", "marks")
"""Parts of the manifest that must be equal in identical runs, in addition to the settings."""


def _run_new_cell(cell: Cell, progress: ProgressSink, stop: StopRequest) -> None:
    def prepare(_: object) -> None:
        write_json(cell.folder.path / IDENTITY, identify_new_run(cell.resolved).hashes)
        source = copy_shared_start(cell)
        if source is not None:
            progress.say(f"  using the warm-up and initial tasks of {source.path.name}")

    folder = cell.folder
    folder.path.parent.mkdir(parents=True, exist_ok=True)
    if folder.path.is_dir() and any(
        not item.name.startswith(".") for item in folder.path.iterdir()
    ):
        raise ConfigError(
            f"{folder.path} is not empty and is not a run folder. Move it elsewhere, or choose "
            "another --name."
        )
    train(folder, cell.resolved, progress, stop, agreed=True, prepare=prepare)


def _say_time_left(progress: ProgressSink, name: str, spent: Sequence[float], left: int) -> None:
    minutes = sum(spent) / len(spent) * left / 60
    later = f"; about {minutes:.0f} min for the remaining {left}" if left else ""
    progress.say(f"{name} took {spent[-1] / 60:.1f} min{later}")
