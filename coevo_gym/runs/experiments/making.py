"""Making a table: running its cells, and writing its files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from coevo_gym.core.errors import ConfigError
from coevo_gym.runs.experiments.cells import SIMULATED, CellCounts, Chosen, require_runs
from coevo_gym.runs.experiments.collecting import collect, finished_of
from coevo_gym.runs.experiments.definition import Row
from coevo_gym.runs.experiments.measures import missing_measures
from coevo_gym.runs.experiments.needs import played
from coevo_gym.runs.experiments.records import ENDING, CellRecord, read_records, write_records
from coevo_gym.runs.experiments.results import ResultTable, lines_of, table_of
from coevo_gym.runs.experiments.running import check_measured, run_cells
from coevo_gym.runs.experiments.simulated import in_worlds, over_worlds, run_batches
from coevo_gym.runs.experiments.writing import markdown, write
from coevo_gym.runs.progress import ProgressFile, ProgressSink
from coevo_gym.runs.stop import StopRequest
from coevo_gym.store.folder import write_atomic


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
    require_runs(chosen)
    chosen, cells, why = played(chosen)
    return collect(chosen, cells, finished_of(cells), why)


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
    require_runs(chosen)
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
    chosen, cells, why = played(_of_records(chosen, records, path))
    table = collect(chosen, cells, finished_of([cell for cell in cells if cell.kept]), why)
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


def _of_runs(
    chosen: Chosen, progress: ProgressSink, stop: StopRequest, *, agreed: bool
) -> tuple[ResultTable, CellCounts]:
    chosen, cells, why = played(chosen)
    if why:
        progress.say(why)
    counts = run_cells(chosen, cells, progress, stop, agreed=agreed)
    return collect(chosen, cells, finished_of(cells), why), counts


def _simulated(
    chosen: Chosen, progress: ProgressSink, stop: StopRequest
) -> tuple[ResultTable, CellCounts]:
    experiment, where = chosen.experiment, chosen.benchmark
    worlds = experiment.benchmarks if where == SIMULATED else (where,)
    chosen = replace(chosen, rows=in_worlds(chosen.rows, worlds))
    values, counts = run_batches(chosen, progress, stop)
    lines = lines_of(chosen, values)
    return table_of(chosen, lines, notes=over_worlds(lines)), counts
