"""Making a table: from the user's choices to its files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coevo_gym.config.keys import suggest
from coevo_gym.core.errors import ConfigError
from coevo_gym.experiments.cells import Cell, Counts, cells_of
from coevo_gym.experiments.collecting import collect
from coevo_gym.experiments.definition import Experiment, Row, Size
from coevo_gym.experiments.needs import played_rows
from coevo_gym.experiments.results import ResultTable, lines_of, table_of
from coevo_gym.experiments.running import run_cells
from coevo_gym.experiments.seeds import read_seeds
from coevo_gym.experiments.simulated import in_worlds, over_worlds, run_batches
from coevo_gym.experiments.writing import write
from coevo_gym.run.progress import Progress, ProgressFile
from coevo_gym.run.stop import StopRequest
from coevo_gym.store.folder import check_name

SIMULATED = "simulated"
"""Placeholder for all worlds of a simulated table."""


@dataclass(frozen=True)
class Chosen:
    """The chosen part of an experiment, and its folder.

    Attributes:
        experiment: the table.
        rows: rows of the table.
        seeds: seeds per row.
        benchmark: name of the benchmark.
        budget: budget per cell.
        folder: folder of its runs and files.
        sets: settings that override all others.
    """

    experiment: Experiment
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    benchmark: str
    budget: Size
    folder: Path
    sets: tuple[str, ...] = ()

    def cells(self) -> list[Cell]:
        """Return the cells in the order of their runs."""
        return cells_of(
            self.experiment,
            self.rows,
            self.seeds,
            self.folder,
            benchmark=self.benchmark,
            budget=self.budget,
            sets=self.sets,
        )


def choose(
    experiment: Experiment,
    runs: Path,
    *,
    benchmark: str | None = None,
    budget: str | None = None,
    seeds: str | None = None,
    rows: tuple[str, ...] = (),
    sets: Sequence[str] = (),
    name: str | None = None,
    metric: str | None = None,
) -> Chosen:
    """Return the user's choices, completed with the table's defaults.

    The name of the folder includes benchmark and budget unless they are the table's defaults. In a
    simulated table, the benchmark is a world, or ``simulated`` for all worlds.

    Raises:
        ConfigError: if budget, row or seed is invalid, or the name is not a valid folder name.
    """
    size = size_of(experiment, budget)
    if name is not None:
        check_name(name)
    if metric is not None:
        experiment = experiment.model_copy(update={"metric": metric})
    usual = SIMULATED if experiment.kind == "simulated" else experiment.benchmarks[0]
    where = benchmark or usual
    parts = [experiment.name]
    parts += [where] if where != usual and experiment.kind == "runs" else []
    parts += [size] if size != experiment.budget else []
    return Chosen(
        experiment,
        experiment.chosen(rows),
        read_seeds(seeds, experiment.seeds),
        where,
        size,
        runs / (name or "-".join(parts)),
        tuple(sets),
    )


def size_of(experiment: Experiment, budget: str | None) -> Size:
    """Return the budget with this name, or the table's default without a name.

    Raises:
        ConfigError: if the table has no such budget.
    """
    if budget is None:
        return experiment.budget
    for size in experiment.sizes:
        if size == budget:
            return size
    raise ConfigError(
        f"{experiment.name} has no budget {budget!r}. {suggest(budget, experiment.sizes)}"
    )


def make(
    chosen: Chosen, progress: Progress, stop: StopRequest, *, agreed: bool = False
) -> tuple[ResultTable, Counts]:
    """Run the missing cells and write the table.

    Raises:
        Stopped: if a stop was requested; finished work is saved.
        ConfigError: if no cell has the number by which rows are compared.
        CoevoError: if a cell fails; earlier cells are kept.
    """
    with ProgressFile(progress, chosen.folder, "experiment", chosen.folder.name) as told:
        if chosen.experiment.kind == "simulated":
            table, counts = _simulated(chosen, told, stop)
        else:
            table, counts = _of_runs(chosen, told, stop, agreed=agreed)
        write(chosen.folder, table)
    return table, counts


def _of_runs(
    chosen: Chosen, progress: Progress, stop: StopRequest, *, agreed: bool
) -> tuple[ResultTable, Counts]:
    experiment, cells = chosen.experiment, chosen.cells()
    rows, why = played_rows(experiment, chosen.rows, cells)
    if why:
        progress.say(why)
    cells = [cell for cell in cells if cell.row in rows]
    shown = defaultdict[str, list[str]](list)
    for row in rows:
        if row.shows:
            shown[experiment.source_of(row, rows)].append(row.shows)
    counts = run_cells(
        cells,
        experiment.measures,
        dict(experiment.others),
        progress,
        stop,
        shown=shown,
        agreed=agreed,
    )
    runs = chosen.folder.parent
    table = collect(
        experiment,
        rows,
        cells,
        benchmark=chosen.benchmark,
        budget=chosen.budget,
        beside={
            name: choose(experiment, runs, benchmark=name, budget=chosen.budget).folder
            for name in experiment.average
        },
        notes=(why,) if why else (),
    )
    return table, counts


def _simulated(chosen: Chosen, progress: Progress, stop: StopRequest) -> tuple[ResultTable, Counts]:
    experiment, where = chosen.experiment, chosen.benchmark
    rows = in_worlds(chosen.rows, experiment.benchmarks if where == SIMULATED else (where,))
    values, counts = run_batches(experiment, rows, chosen.seeds, chosen.folder, progress, stop)
    lines = lines_of(experiment, rows, values, chosen.budget)
    return table_of(experiment, lines, where, chosen.budget, notes=over_worlds(lines)), counts
