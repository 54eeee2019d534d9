"""The results of a table of evaluations, as Markdown, CSV, JSON or the cells of a printed table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.spaces import make_visible
from coevo_gym.core.text_tables import csv_cell, markdown_table
from coevo_gym.runs.evals.ledger import Ledger, make_ledger
from coevo_gym.runs.evals.sides import find_result
from coevo_gym.runs.evals.tables.definition import EvalCell, EvalTableDefinition
from coevo_gym.store.eval_folder import EvalLine
from coevo_gym.store.folder import raise_store_errors, read_json, replace_non_finite, write_atomic
from coevo_gym.store.links import linked_folder

FILE = "table.json"
"""Name of the file with the table as JSON."""
NOTHING = "–"


@dataclass(frozen=True)
class CellResult:
    """The state and the costs of a cell.

    Attributes:
        row: name of the row.
        column: name of the column.
        seed: the seed.
        folder: path of the evaluation.
        state: ``finished``, ``failed`` or ``missing``, if the cell was not reached.
        episodes: number of finished episodes.
        lost: number of episodes that were lost to a fault and are excluded from the results.
        tokens: tokens that the model read and wrote in these episodes.
        usd: price of these tokens in US dollars, where prices are set.
        used_from: the folder of another table whose identical cell is used; "" for the table's own.
        problem: the reason of a failure; "" for none.
    """

    row: str
    column: str
    seed: int
    folder: str
    state: str
    episodes: int = 0
    lost: int = 0
    tokens: int = 0
    usd: float = 0.0
    used_from: str = ""
    problem: str = ""

    @property
    def place(self) -> str:
        """The cell's place in the table, in words."""
        return f"{self.row} on {self.column}, seed {self.seed}"


@dataclass(frozen=True)
class TableResult:
    """A model's result on a benchmark, over its seeds. Rates are in [0, 1].

    Attributes:
        row: name of the row.
        column: name of the column.
        state: ``finished``, ``failed`` or ``missing``; several states, if the seeds differ.
        planned: number of seeds in the table.
        seeds: number of seeds with a result.
        tasks: number of tasks that all of these have; 0 if there is no result.
        success: success rate; None if there is no result.
        low: lower end of its 95% interval over tasks.
        high: upper end of this interval.
        sd: sample standard deviation over seeds; None for a single seed.
        episodes: number of finished episodes.
        lost: number of episodes that were lost to a fault.
        tokens: tokens that the model read and wrote.
        usd: price of these tokens in US dollars, where prices are set.
    """

    row: str
    column: str
    state: str
    planned: int
    seeds: int
    tasks: int
    success: float | None
    low: float | None
    high: float | None
    sd: float | None
    episodes: int
    lost: int
    tokens: int
    usd: float

    def __str__(self) -> str:
        """Return the result as it is printed: in percent, with its interval."""
        if self.success is None or self.low is None or self.high is None:
            return "failed" if "failed" in self.state else NOTHING
        text = f"{100 * self.success:.1f} [{100 * self.low:.1f}, {100 * self.high:.1f}]"
        if self.sd is not None:
            text += f" ± {100 * self.sd:.1f}"
        complete = self.seeds == self.planned
        return text if complete else f"{text}, {self.seeds} of {self.planned} seeds"


@dataclass(frozen=True)
class EvalTable:
    """A table of evaluations with the results so far.

    Attributes:
        name: name of the table's folder.
        title: title of the table.
        rows: names of the rows.
        columns: names of the columns.
        cells: state and costs of all cells.
        ledgers: results by column; a column without any result is missing.
        notes: remarks about finished cells and columns.
    """

    name: str
    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[CellResult, ...]
    ledgers: Mapping[str, Ledger]
    notes: tuple[str, ...]

    @property
    def is_finished(self) -> bool:
        """True if all cells are finished."""
        return all(cell.state == "finished" for cell in self.cells)

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences about cells that failed or are missing."""
        failed = [cell for cell in self.cells if cell.state == "failed"]
        sentences = [
            f"{places}: failed. {problem}"
            for places, problem in group_problems((cell, cell.problem) for cell in failed)
        ]
        if missing := sum(cell.state == "missing" for cell in self.cells):
            sentences.append(
                f"{missing} of {len(self.cells)} cells are missing. Run the same command to "
                "continue."
            )
        return tuple(sentences)

    @property
    def results(self) -> tuple[TableResult, ...]:
        """The results, row by row."""
        return tuple(self._result(row, column) for row in self.rows for column in self.columns)

    def _result(self, row: str, column: str) -> TableResult:
        cells = [cell for cell in self.cells if (cell.row, cell.column) == (row, column)]
        rows = self.ledgers[column].rows if column in self.ledgers else ()
        result = next((one for one in rows if one.label == row), None)
        return TableResult(
            row=row,
            column=column,
            state="; ".join(sorted({cell.state for cell in cells})),
            planned=len(cells),
            seeds=len(result.means) if result else 0,
            tasks=result.tasks if result else 0,
            success=result.success if result else None,
            low=result.low if result else None,
            high=result.high if result else None,
            sd=result.repeat_sd if result else None,
            episodes=sum(cell.episodes for cell in cells),
            lost=sum(cell.lost for cell in cells),
            tokens=sum(cell.tokens for cell in cells),
            usd=sum(cell.usd for cell in cells),
        )


def group_problems(
    problems: Iterable[tuple[EvalCell | CellResult, str]],
) -> Iterator[tuple[str, str]]:
    """Yield each problem once, with the places of the cells that have it."""
    by_problem: dict[str, list[EvalCell | CellResult]] = {}
    for cell, problem in problems:
        by_problem.setdefault(problem, []).append(cell)
    for problem, cells in by_problem.items():
        yield _describe_places(cells), problem


def _describe_places(cells: Sequence[EvalCell | CellResult]) -> str:
    """Return the places of cells in words, in short if they are a whole block of the table."""
    rows, columns, seeds = (
        list(dict.fromkeys(values))
        for values in zip(*((cell.row, cell.column, cell.seed) for cell in cells), strict=True)
    )
    if len(cells) == 1 or len(cells) < len(rows) * len(columns) * len(seeds):
        return "; ".join(cell.place for cell in cells)
    several = "seed" if len(seeds) == 1 else "seeds"
    return f"{', '.join(rows)} on {', '.join(columns)}, {several} {', '.join(map(str, seeds))}"


def build_eval_table(definition: EvalTableDefinition, problems: Mapping[str, str]) -> EvalTable:
    """Build a table from the finished evaluations in its folder.

    Args:
        definition: the table.
        problems: reasons of failures, by the name of the cell.

    Raises:
        StoreError: if an evaluation cannot be read.
    """
    cells = [_read_cell(cell, problems.get(cell.name, "")) for cell in definition.cells]
    ledgers, remarks = {}, []
    for column in definition.columns:
        results = [
            (cell.row, find_result(cell.folder)[0])
            for cell in cells
            if cell.column == column and cell.state == "finished"
        ]
        try:
            if results:
                ledgers[column] = make_ledger(results)
        except ConfigError as error:
            remarks.append(f"{column} has no numbers: {error}")
    return EvalTable(
        name=definition.folder.name,
        title=definition.title,
        rows=tuple(definition.rows),
        columns=tuple(definition.columns),
        cells=tuple(cells),
        ledgers=ledgers,
        notes=(*remarks, *_notes(cells, ledgers)),
    )


def _read_cell(cell: EvalCell, problem: str) -> CellResult:
    lines: list[EvalLine] = []
    if cell.folder.config.is_file() and not (problem and not cell.folder.results.is_file()):
        lines = list(cell.folder.read_results().values())
    finished = cell.has_result and not problem
    path = cell.folder.path
    return CellResult(
        row=cell.row,
        column=cell.column,
        seed=cell.seed,
        folder=str(path),
        state="finished" if finished else "failed" if problem else "missing",
        episodes=len(lines),
        lost=int(read_json(cell.folder.summary)["lost"]) if finished else 0,
        tokens=sum(line.usage.tokens for line in lines),
        usd=sum(line.usd for line in lines),
        used_from=linked_folder(path),
        problem=problem,
    )


def _notes(cells: Sequence[CellResult], ledgers: Mapping[str, Ledger]) -> Iterator[str]:
    for cell in cells:
        if cell.used_from:
            yield f"{cell.place}: the identical evaluation {cell.used_from} is used."
        if cell.lost:
            yield (
                f"{cell.place}: {cell.lost} episodes were lost to a fault and are excluded. Run "
                "the same command to play them again."
            )
    for column, ledger in ledgers.items():
        for row in ledger.rows:
            yield from (f"{row.label} on {column}: {note}" for note in row.notes)


def main_grid(results: Sequence[TableResult]) -> tuple[list[str], list[list[str]]]:
    """Return the column titles and the rows of the printed table."""
    asked = any(one.tokens for one in results)
    columns = dict.fromkeys(one.column for one in results)
    heads = ["model", *(f"{column}, %" for column in columns)]
    heads += ["tokens of models", "USD"] if asked else []
    rows = []
    for row in dict.fromkeys(one.row for one in results):
        mine = [one for one in results if one.row == row]
        cells = [row, *map(str, mine)]
        if asked:
            tokens, usd = sum(one.tokens for one in mine), sum(one.usd for one in mine)
            cells += [f"{tokens:,}" if tokens else "", _format_usd(tokens, usd)]
        rows.append(cells)
    return heads, rows


def explanations(results: Sequence[TableResult]) -> Iterator[str]:
    """Yield the sentences below a table, apart from its notes."""
    columns = dict.fromkeys(one.column for one in results if one.tasks)
    counts = {column: _format_task_counts(results, column) for column in columns}
    if counts:
        one_number = len(set(counts.values())) == 1
        each = ", ".join(f"{count} of {column}" for column, count in counts.items())
        number = f"{counts[next(iter(counts))]} tasks" if one_number else f"tasks ({each})"
        yield (
            f"Success with its 95 % interval over {number}: how far other tasks like these would "
            "move it."
        )
    if any(one.sd is not None for one in results):
        yield "± is the sample standard deviation over seeds."


def _format_task_counts(results: Sequence[TableResult], column: str) -> str:
    """Return the number of tasks of a column's results, which differ if episodes were lost."""
    counts = sorted({one.tasks for one in results if one.column == column and one.tasks})
    return " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))


def as_json(table: EvalTable) -> str:
    """Return a table as JSON, with rates in [0, 1]."""
    return json.dumps(to_json(table), indent=2, ensure_ascii=False) + "\n"


def to_json(table: EvalTable) -> dict[str, Any]:
    """Return a table as a JSON object, with rates in [0, 1]."""
    results = [asdict(one) for one in table.results]
    value: dict[str, Any] = replace_non_finite(
        {**asdict(table), "finished": table.is_finished, "results": results}
    )
    return value


def as_csv(table: EvalTable) -> str:
    """Return a table as CSV, with one line per row and column, and rates in [0, 1]."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = ("model", "benchmark", "state", "seeds", "tasks", "success", "low", "high", "sd")
    writer.writerow((*heads, "episodes", "lost", "tokens", "usd"))
    for one in table.results:
        known = (one.seeds, one.tasks) if one.seeds else (None, None)
        numbers = (one.success, one.low, one.high, one.sd)
        costs = (one.episodes, one.lost, one.tokens, one.usd)
        writer.writerow(map(csv_cell, (one.row, one.column, one.state, *known, *numbers, *costs)))
    return out.getvalue()


def as_markdown(table: EvalTable) -> str:
    """Return a table as Markdown."""
    parts = [
        f"# {table.title}",
        markdown_table(*main_grid(table.results)),
        *explanations(table.results),
        "\n".join(f"- {note}" for note in (*table.problems, *table.notes)),
    ]
    return make_visible("\n\n".join(part for part in parts if part)) + "\n"


def write_eval_table(folder: Path, table: EvalTable) -> None:
    """Write ``table.md``, ``table.csv`` and ``table.json`` to a folder, creating it if missing.

    Raises:
        StoreError: if a file cannot be written.
    """
    with raise_store_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    texts = {"table.md": as_markdown(table), "table.csv": as_csv(table), FILE: as_json(table)}
    for name, text in texts.items():
        write_atomic(folder / name, text.encode())


def _format_usd(tokens: int, usd: float) -> str:
    if not tokens:
        return ""
    return f"{usd:.2f}" if usd else "price not set"
