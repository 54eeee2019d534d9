"""Runs of a table's cells: missing cells are started, and interrupted cells are resumed."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from time import monotonic

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.spend import Cost
from coevo_gym.core.task import FrozenDict
from coevo_gym.experiments.cells import Cell, CellCounts
from coevo_gym.experiments.measures import measure, missing_measures
from coevo_gym.experiments.records import CellRecord
from coevo_gym.experiments.sharing import beside, take_over
from coevo_gym.run.evolving.cost import estimates, require_consent
from coevo_gym.run.progress import ProgressSink
from coevo_gym.run.stop import Stopped, StopRequest
from coevo_gym.run.train import resume, train


def check_cells(
    cells: Sequence[Cell],
    measures: Sequence[str],
    shown: Mapping[str, Sequence[str]],
    *,
    agreed: bool = False,
) -> None:
    """Check that all cells can be run before the first one is started.

    Raises:
        ConfigError: if a cell was run with other settings, a cell from a file lacks a measure, or
            the user has not agreed to the cost of a cell.
        StoreError: if a cell cannot be read.
    """
    for cell in cells:
        if cell.state != "finished" and not agreed:
            require_consent(estimates(cell.config))
        if cell.kept is not None:
            check_measured(cell.kept, measures, shown.get(cell.row.name, ()))


def check_measured(record: CellRecord, measures: Sequence[str], shown: Sequence[str] = ()) -> None:
    """Check that all measures of a finished cell were taken.

    Raises:
        ConfigError: if one is missing.
    """
    missing = [name for _, name in missing_measures(record.measures, measures, shown)]
    if missing:
        raise ConfigError(
            f"{record.name}, {record.where}, lacks the measures {', '.join(missing)}, which need "
            "its run. Run `coevo experiment` with that row and seed where the run is, without a "
            "file of cells."
        )


def run_cells(
    cells: Sequence[Cell],
    measures: Sequence[str],
    others: dict[str, str],
    progress: ProgressSink,
    stop: StopRequest,
    *,
    shown: Mapping[str, Sequence[str]] = FrozenDict(),
    agreed: bool = False,
) -> CellCounts:
    """Run all unfinished cells, in order, and measure each cell.

    Args:
        cells: cells of a table.
        measures: names of the measurements; see :func:`~coevo_gym.experiments.measures.measure`.
        others: test benchmarks for the measure ``transfer``, by practised benchmark.
        progress: progress display for the user.
        stop: checked at every step boundary.
        shown: baselines and measures that other rows show from the runs of a row, by its name.
        agreed: True if the user has agreed to the cost of model calls.

    Raises:
        Stopped: if a stop was requested; finished work is saved.
        CoevoError: if a cell fails; earlier cells are kept.
    """
    check_cells(cells, measures, shown, agreed=agreed)
    counts, spent = CellCounts(), list[float]()
    left = sum(cell.state != "finished" for cell in cells)
    if left:
        progress.say(f"{left} of {len(cells)} cells will be run.")
    for number, cell in enumerate(cells, start=1):
        if stop():
            raise Stopped
        state, started = cell.state, monotonic()
        told = _Told(progress, f"[{number}/{len(cells)}] {cell.name}")
        if state != "finished":
            later_s = sum(spent) / len(spent) * (left - 1) if spent else None
            progress.part(number, len(cells), cell.name, later_s if left > 1 else 0.0)
        if state == "finished":
            counts.there += 1
        elif state == "cut":
            resume(cell.folder, told, stop)
            counts.resumed += 1
        else:
            _begin(cell, told, stop)
            counts.new += 1
        if cell.kept is None:
            measure(cell.folder, cell.row.name, measures, others, shown.get(cell.row.name, ()))
        if state != "finished":
            spent.append(monotonic() - started)
            left -= 1
            _tell(progress, told.name, spent, left)
            gc.collect()  # free the run now: its reference cycles would keep the memory
    return counts


def _begin(cell: Cell, progress: ProgressSink, stop: StopRequest) -> None:
    def prepare(_: object) -> None:
        source = take_over(cell, beside(cell))
        if source is not None:
            progress.say(f"  using the warm-up and first tasks of {source.path.name}")

    folder = cell.folder
    folder.path.parent.mkdir(parents=True, exist_ok=True)
    if folder.path.is_dir() and any(
        not item.name.startswith(".") for item in folder.path.iterdir()
    ):
        raise ConfigError(
            f"{folder.path} is not empty and is not a run. Move it away, or choose another --name."
        )
    train(folder, cell.resolved, progress, stop, agreed=True, prepare=prepare)


def _tell(progress: ProgressSink, name: str, spent: Sequence[float], left: int) -> None:
    minutes = sum(spent) / len(spent) * left / 60
    later = f"; about {minutes:.0f} min for the {left} that are left" if left else ""
    progress.say(f"{name} took {spent[-1] / 60:.1f} min{later}")


class _Told:
    """A progress display that prefixes all names with the cell's name."""

    def __init__(self, progress: ProgressSink, name: str) -> None:
        self.progress, self.name = progress, name

    def part(self, number: int, of: int, name: str, later_s: float | None = None) -> None:
        """Do nothing: a cell has no parts."""

    def phase(self, name: str, total: int, done: int = 0, *, similar: int = 0) -> None:
        """Start a phase; see :class:`~coevo_gym.run.progress.ProgressSink`."""
        self.progress.phase(f"{self.name}: {name}", total, done, similar=similar)

    def expect(self, steps: int, words: str, *, whole: bool = False) -> None:
        """Announce further steps; see :class:`~coevo_gym.run.progress.ProgressSink`."""
        self.progress.expect(steps, words, whole=whole)

    def update(self, done: int, **facts: str) -> None:
        """Update the current phase; see :class:`~coevo_gym.run.progress.ProgressSink`."""
        self.progress.update(done, **facts)

    def acted(self, steps: int, tokens: int) -> None:
        """Count env steps and tokens; see :class:`~coevo_gym.run.progress.ProgressSink`."""
        self.progress.acted(steps, tokens)

    def spent(self, cost: Cost) -> None:
        """Add a cost; see :class:`~coevo_gym.run.progress.ProgressSink`."""
        self.progress.spent(cost)

    def say(self, text: str) -> None:
        """Print a message; see :class:`~coevo_gym.run.progress.ProgressSink`."""
        self.progress.say(text)
