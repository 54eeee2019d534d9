"""Functions that run an experiment's cells, collect the results and write the table's files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from coevo_gym.core.errors import ConfigError
from coevo_gym.methods.published import differences_from_paper
from coevo_gym.runs.config import arm_configs
from coevo_gym.runs.experiments.cells import (
    Cell,
    CellCounts,
    Chosen,
    choose_cells,
)
from coevo_gym.runs.experiments.definition import Experiment, Row, Size
from coevo_gym.runs.experiments.measures import missing_measures
from coevo_gym.runs.experiments.needs import omit_rows_lacking_language_model
from coevo_gym.runs.experiments.numbers import Numbers, numbers_of
from coevo_gym.runs.experiments.records import (
    ENDING,
    CellRecord,
    read_record,
    read_records,
    write_records,
)
from coevo_gym.runs.experiments.results import Printed, ResultTable, make_result_table, table_lines
from coevo_gym.runs.experiments.running import require_measures, run_cells
from coevo_gym.runs.experiments.table_parts import additional_parts, learning_speeds
from coevo_gym.runs.experiments.writing import as_markdown, write_table
from coevo_gym.runs.planning.plan import settings_of
from coevo_gym.runs.progress_reports import ProgressFile, ProgressSink
from coevo_gym.runs.stop import StopRequest
from coevo_gym.store.folder import RunFolder, write_atomic
from coevo_gym.store.links import linked_folder

_BEFORE_TRAINING = ("benchmark.", "policy.", "evaluation.", "warmup.")
_OF_TRAINING = ("policy.model.lora_rank", "policy.chat.temperature")


def run_experiment(
    chosen: Chosen,
    progress: ProgressSink,
    stop: StopRequest,
    *,
    agreed: bool = False,
    fresh: bool = False,
) -> tuple[ResultTable, CellCounts]:
    """Run an experiment's missing cells, and write its table to its folder.

    With ``fresh``, the identical cells of other tables are not used.

    Raises:
        Stopped: if a stop was requested; finished work is saved.
        ConfigError: if no cell has the metric on which rows are compared.
        CoevoError: if a cell fails; earlier cells are kept.
    """
    with ProgressFile(progress, chosen.folder, "experiment", chosen.folder.name) as reporter:
        chosen, cells, why = omit_rows_lacking_language_model(chosen)
        if why:
            reporter.say(why)
        counts = run_cells(chosen, cells, reporter, stop, agreed=agreed, fresh=fresh)
        table = build_table(chosen, cells, finished_records(cells), why)
        write_table(chosen.folder, table)
    return table, counts


def build_finished_table(chosen: Chosen) -> ResultTable:
    """Build the table of an experiment's finished cells, without running or writing anything.

    Raises:
        ConfigError: if a cell was run with different settings, or no cell has the metric on which
            rows are compared.
        StoreError: if a cell cannot be read.
    """
    chosen, cells, why = omit_rows_lacking_language_model(chosen)
    return build_table(chosen, cells, finished_records(cells), why)


def export_cells(chosen: Chosen, path: Path) -> ResultTable:
    """Write finished cells to a records file, and a table of all recorded cells to a second file.

    Other cells in the file are kept. The table is written to a file of the same name that ends in
    ``.md``.

    Returns:
        The table of all cells in the file.

    Raises:
        ConfigError: if no cell is finished, a measure of a cell is missing, or the file contains a
            cell with different settings or from another table.
        StoreError: if a cell or the file cannot be read, or a file cannot be written.
    """
    if path.suffix != ENDING:
        raise ConfigError(f"The name of the export file must end in {ENDING}, got {path}.")
    records = read_records(path) if path.exists() else {}
    records |= finished_records(chosen.cells())
    if not records:
        raise ConfigError(
            f"{chosen.folder} has no finished runs for these rows and seeds. Run "
            "`coevo experiment` without --export first."
        )
    for record in records.values():
        require_measures(record, chosen.experiment.measures)
    chosen, cells, why = omit_rows_lacking_language_model(_limit_to_records(chosen, records, path))
    table = build_table(chosen, cells, finished_records([cell for cell in cells if cell.kept]), why)
    write_records(path, records.values())
    write_atomic(path.with_suffix(".md"), as_markdown(table).encode())
    return table


def _limit_to_records(chosen: Chosen, records: Mapping[str, CellRecord], path: Path) -> Chosen:
    """Limit a table to the rows and seeds for which there are records."""
    of_row = defaultdict[str, list[CellRecord]](list)
    for record in records.values():
        of_row[record.row_and_seed[0]].append(record)
    experiment = chosen.experiment
    known = {row.name for row in experiment.rows if not row.shows}
    if other := sorted(of_row.keys() - known):
        raise ConfigError(
            f"{path} contains cells for rows that are not in {experiment.name}: "
            f"{', '.join(other)}. Write to another file."
        )
    with_runs = tuple(row for row in experiment.rows if row.name in of_row)

    def is_covered(row: Row) -> bool:
        parts = (row.shows,) if row.shows else ()
        return any(
            not missing_measures(record.measures, experiment.measures, parts)
            for record in of_row.get(experiment.source_row_of(row, with_runs), ())
        )

    rows = tuple(row for row in experiment.rows if is_covered(row))
    seeds = sorted({record.row_and_seed[1] for record in records.values()})
    return replace(chosen, rows=rows, seeds=tuple(seeds), kept=records)


def paper_results_and_notes(chosen: Chosen, cells: Sequence[Cell]) -> tuple[Printed, list[str]]:
    """Return the paper's results, keyed by row, and notes on rows that differ from the paper."""
    experiment, benchmark, budget = chosen.experiment, chosen.benchmark, chosen.budget
    results: dict[str, Mapping[str, float]] = {}
    differing: dict[str, list[str]] = {}
    for row in chosen.rows:
        numbers = row.paper_results(benchmark, experiment.metric)
        if not numbers or _differs_from_paper(experiment, row, budget):
            continue
        differ = _differences_from_paper(experiment, row, cells, benchmark, budget)
        if not differ:
            results[row.name] = numbers
        elif budget == "paper":
            text = "; ".join(f"{key}: {values}" for key, values in differ.items())
            differing.setdefault(text, []).append(row.label_at(budget))
    return results, [
        f"The paper's numbers are not shown beside {', '.join(labels)}: settings differ ({text})."
        for text, labels in differing.items()
    ]


def _differs_from_paper(experiment: Experiment, row: Row, budget: Size) -> bool:
    """Return True if the row with the given budget differs from the paper's row."""
    if row.shows == "printed":
        return budget != "paper"
    return not experiment.follows and budget in row.at and bool(row.at[budget].set)


def _differences_from_paper(
    experiment: Experiment, row: Row, cells: Sequence[Cell], benchmark: str, budget: Size
) -> dict[str, str]:
    """Return the settings that differ from the paper's, except those that the table varies."""
    if not experiment.follows or row.shows == "printed":
        return {}
    source = experiment.source_row_of(row)
    cell = next((cell for cell in cells if cell.row.name == source), None)
    if cell is None:
        return {}
    settings = settings_of(cell.config, arm_configs(cell.config)[source])
    changes = differences_from_paper(benchmark, settings, experiment.follows)
    about = cell.row.keys_at(budget) | experiment.keys
    return {
        key: values
        for key, values in changes.items()
        if key not in about
        and (not row.shows or (key.startswith(_BEFORE_TRAINING) and key not in _OF_TRAINING))
    }


def finished_records(cells: Sequence[Cell]) -> dict[str, CellRecord]:
    """Return the records of an experiment's finished cells, keyed by name.

    Raises:
        ConfigError: if a cell was run with different settings.
        StoreError: if a cell cannot be read.
    """
    return {cell.name: cell.read_record() for cell in cells if cell.state == "finished"}


def build_table(
    chosen: Chosen, cells: Sequence[Cell], records: Mapping[str, CellRecord], why: str = ""
) -> ResultTable:
    """Build the table of an experiment's finished cells from records keyed by cell name.

    The column ``average`` reads the same table on other benchmarks, from their usual folders.
    ``why`` is a further remark about the table, or "".

    Raises:
        ConfigError: if no cell has the metric on which rows are compared.
        StoreError: if a cell of a table on another benchmark cannot be read.
    """
    experiment, rows = chosen.experiment, chosen.rows
    beside = {
        name: choose_cells(
            experiment, chosen.folder.parent, benchmark=name, budget=chosen.budget
        ).folder
        for name in experiment.average
    }
    finished = [(cell, records[cell.name]) for cell in cells if cell.name in records]
    values: dict[str, dict[int, dict[str, float]]] = {row.name: {} for row in rows}
    for cell, record in finished:
        values[cell.row.name][cell.seed] = numbers_of(record, cell.row.name)
        for row in rows:
            wanted = row.shows not in ("", "printed") and row.of in ("", cell.row.name)
            if not wanted or cell.seed in values[row.name]:
                continue
            if numbers := numbers_of(record, row.shows):
                values[row.name][cell.seed] = numbers
    for row in rows:
        for seed, numbers in values[row.name].items():
            numbers |= _average_across_benchmarks(
                experiment, row, seed, numbers, chosen.benchmark, beside
            )
    measured = {
        row.name: {
            cell.seed: record.measures
            for cell, record in finished
            if cell.row == row and record.measures
        }
        for row in rows
    }
    for row in rows:
        for seed, numbers in learning_speeds(experiment, row, measured).items():
            values[row.name][seed] |= numbers
    printed, differing = paper_results_and_notes(chosen, cells)
    lines = table_lines(chosen, values, printed)
    return make_result_table(
        chosen,
        lines,
        parts=additional_parts(experiment, rows, lines, measured),
        notes=(*([why] if why else ()), *differing, *_table_notes(cells, finished, chosen.budget)),
    )


def _average_across_benchmarks(
    experiment: Experiment,
    row: Row,
    seed: int,
    numbers: Numbers,
    benchmark: str,
    beside: Mapping[str, Path],
) -> dict[str, float]:
    """Average a row's results across benchmarks. Return {} if a result is missing."""
    values = []
    for other, names in experiment.average.items():
        if other != benchmark:
            run = RunFolder(beside[other] / f"{experiment.source_row_of(row)}-{seed}")
            part = row.shows or row.name
            numbers_there = numbers_of(read_record(run), part) if run.summary.is_file() else {}
        else:
            numbers_there = dict(numbers)
        values += [numbers_there.get(name) for name in names]
    known = [number for number in values if number is not None]
    return {"average": fmean(known)} if known and len(known) == len(values) else {}


def _table_notes(
    cells: Sequence[Cell], finished: Sequence[tuple[Cell, CellRecord]], budget: Size
) -> Iterator[str]:
    if len(finished) < len(cells):
        yield f"{len(finished)} of {len(cells)} cells are finished."
    for cell, _ in finished:
        if there := linked_folder(cell.folder.path):
            yield f"{cell.name}: the identical run {there} of another table is used."
    by_mark: dict[str, dict[str, None]] = {}
    for cell, record in finished:
        for row in record.summary["table"]:
            if row["name"] == cell.row.name and row.get("mark"):
                by_mark.setdefault(row["mark"], {})[cell.row.label_at(budget)] = None
    for mark, labels in by_mark.items():
        yield f"{', '.join(labels)}: {mark}."
    code = {record.code for _, record in finished}
    if len(code) > 1:
        yield f"The cells were run by different code: {', '.join(sorted(code))}."
