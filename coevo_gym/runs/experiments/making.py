"""Making a table: from the user's choices to its files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenDict
from coevo_gym.runs.config.keys import suggest
from coevo_gym.runs.experiments.cells import Cell, CellCounts, cells_of
from coevo_gym.runs.experiments.collecting import collect, finished_of
from coevo_gym.runs.experiments.definition import Experiment, Row, Size, read_seeds
from coevo_gym.runs.experiments.measures import missing_measures
from coevo_gym.runs.experiments.needs import played_rows
from coevo_gym.runs.experiments.records import ENDING, CellRecord, read_records, write_records
from coevo_gym.runs.experiments.results import ResultTable, lines_of, table_of
from coevo_gym.runs.experiments.running import check_measured, run_cells
from coevo_gym.runs.experiments.simulated import in_worlds, over_worlds, run_batches
from coevo_gym.runs.experiments.writing import markdown, write
from coevo_gym.runs.progress import ProgressFile, ProgressSink
from coevo_gym.runs.stop import StopRequest
from coevo_gym.store.folder import check_name, write_atomic

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
        kept: records of finished cells by name, used in place of runs in the folder.
    """

    experiment: Experiment
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    benchmark: str
    budget: Size
    folder: Path
    sets: tuple[str, ...] = ()
    kept: Mapping[str, CellRecord] = FrozenDict()

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
            kept=self.kept,
        )

    def shown(self) -> dict[str, list[str]]:
        """Return the baselines and measures that rows show from the runs of a row, by its name."""
        found = defaultdict[str, list[str]](list)
        for row in self.rows:
            if row.shows:
                found[self.experiment.source_of(row, self.rows)].append(row.shows)
        return found


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
    kept: Path | None = None,
) -> Chosen:
    """Return the user's choices, completed with the table's defaults.

    The name of the folder includes benchmark and budget unless they are the table's defaults. In a
    simulated table, the benchmark is a world, or ``simulated`` for all worlds. ``kept`` is a file
    with records of finished cells.

    Raises:
        ConfigError: if budget, row or seed is invalid, or the name is not a valid folder name.
        StoreError: if the file of records cannot be read.
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
    chosen = Chosen(
        experiment,
        experiment.chosen(rows),
        read_seeds(seeds, experiment.seeds),
        where,
        size,
        runs / (name or "-".join(parts)),
        tuple(sets),
    )
    if kept is None:
        return chosen
    _require_runs(chosen)
    return replace(chosen, kept=read_records(kept))


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
    chosen: Chosen, progress: ProgressSink, stop: StopRequest, *, agreed: bool = False
) -> tuple[ResultTable, CellCounts]:
    """Run the missing cells and write the table to its folder.

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


def finished(chosen: Chosen) -> ResultTable:
    """Return the table of the finished cells; nothing is run or written.

    Raises:
        ConfigError: if the table is simulated, a cell was run with other settings, or no cell has
            the number by which rows are compared.
        StoreError: if a cell cannot be read.
    """
    _require_runs(chosen)
    chosen, cells, why = _played(chosen)
    return _collected(chosen, cells, finished_of(cells), why)


def export(chosen: Chosen, path: Path) -> ResultTable:
    """Write the finished cells to a file of records, and the table of all its cells beside it.

    Other cells that the file already contains are kept. The table is written to the same name with
    the ending ``.md``.

    Returns:
        The table of all cells in the file.

    Raises:
        ConfigError: if the table is simulated, no cell is finished, a measure of a cell is missing,
            or the file contains a cell that was run with other settings or is not of this table.
        StoreError: if a cell or the file cannot be read, or a file cannot be written.
    """
    _require_runs(chosen)
    if path.suffix != ENDING:
        raise ConfigError(f"The name of a file of cells ends in {ENDING}; actual: {path}.")
    records = read_records(path) if path.exists() else {}
    records |= finished_of(chosen.cells())
    if not records:
        raise ConfigError(
            f"{chosen.folder} has no finished cell of these rows and seeds. Run `coevo experiment` "
            "without --export first."
        )
    for record in records.values():
        check_measured(record, chosen.experiment.measures)
    chosen, cells, why = _played(_of_records(chosen, records, path))
    table = _collected(chosen, cells, finished_of([cell for cell in cells if cell.kept]), why)
    write_records(path, records.values())
    write_atomic(path.with_suffix(".md"), markdown(table).encode())
    return table


def _of_records(chosen: Chosen, records: Mapping[str, CellRecord], path: Path) -> Chosen:
    """Return the part of a table that records cover, with rows shown from their runs."""
    of_row = defaultdict[str, list[CellRecord]](list)
    for record in records.values():
        of_row[record.row_and_seed[0]].append(record)
    experiment = chosen.experiment
    known = {row.name for row in experiment.rows if not row.shows}
    if other := sorted(of_row.keys() - known):
        raise ConfigError(
            f"{path} contains cells of {', '.join(other)}, which {experiment.name} does not have. "
            "Write to another file."
        )
    with_runs = tuple(row for row in experiment.rows if row.name in of_row)

    def covered(row: Row) -> bool:
        shown = (row.shows,) if row.shows else ()
        return any(
            not missing_measures(record.measures, experiment.measures, shown)
            for record in of_row.get(experiment.source_of(row, with_runs), ())
        )

    rows = tuple(row for row in experiment.rows if covered(row))
    seeds = sorted({record.row_and_seed[1] for record in records.values()})
    return replace(chosen, rows=rows, seeds=tuple(seeds), kept=records)


def _require_runs(chosen: Chosen) -> None:
    if chosen.experiment.kind == "simulated":
        raise ConfigError(
            f"{chosen.experiment.name} is simulated; --from, --finished and --export are for "
            f"tables of runs. Leave them out; finished seeds are kept in {chosen.folder}."
        )


def _played(chosen: Chosen) -> tuple[Chosen, list[Cell], str]:
    """Return the table without rows that the policy cannot play, its cells, and a note."""
    cells = chosen.cells()
    rows, why = played_rows(chosen.experiment, chosen.rows, cells)
    return replace(chosen, rows=rows), [cell for cell in cells if cell.row in rows], why


def _of_runs(
    chosen: Chosen, progress: ProgressSink, stop: StopRequest, *, agreed: bool
) -> tuple[ResultTable, CellCounts]:
    chosen, cells, why = _played(chosen)
    if why:
        progress.say(why)
    experiment = chosen.experiment
    counts = run_cells(
        cells,
        experiment.measures,
        dict(experiment.others),
        progress,
        stop,
        shown=chosen.shown(),
        agreed=agreed,
    )
    return _collected(chosen, cells, finished_of(cells), why), counts


def _collected(
    chosen: Chosen, cells: Sequence[Cell], records: Mapping[str, CellRecord], why: str = ""
) -> ResultTable:
    experiment, runs = chosen.experiment, chosen.folder.parent
    return collect(
        experiment,
        chosen.rows,
        cells,
        records,
        benchmark=chosen.benchmark,
        budget=chosen.budget,
        beside={
            name: choose(experiment, runs, benchmark=name, budget=chosen.budget).folder
            for name in experiment.average
        },
        notes=(why,) if why else (),
    )


def _simulated(
    chosen: Chosen, progress: ProgressSink, stop: StopRequest
) -> tuple[ResultTable, CellCounts]:
    experiment, where = chosen.experiment, chosen.benchmark
    rows = in_worlds(chosen.rows, experiment.benchmarks if where == SIMULATED else (where,))
    values, counts = run_batches(experiment, rows, chosen.seeds, chosen.folder, progress, stop)
    lines = lines_of(experiment, rows, values, chosen.budget)
    return table_of(experiment, lines, where, chosen.budget, notes=over_worlds(lines)), counts
