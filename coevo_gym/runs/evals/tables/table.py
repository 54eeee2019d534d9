"""The results of a table of evaluations, as Markdown, CSV, JSON or the cells of a printed table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.spaces import make_visible
from coevo_gym.core.text_tables import csv_cell, markdown_table
from coevo_gym.runs.evals.ledger import Ledger, LedgerRow, make_ledger
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
        notes: remarks about cells.
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

    def cells_of(self, row: str, column: str) -> list[CellResult]:
        """Return the cells of a row and a column, one per seed."""
        return [cell for cell in self.cells if (cell.row, cell.column) == (row, column)]

    def result_of(self, row: str, column: str) -> LedgerRow | None:
        """Return the result of a row and a column over its seeds, or None if there is none."""
        rows = self.ledgers[column].rows if column in self.ledgers else ()
        return next((one for one in rows if one.label == row), None)


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
        place = f"{cell.row} on {cell.column}, seed {cell.seed}"
        if cell.used_from:
            yield f"{place}: the identical evaluation {cell.used_from} is used."
        if cell.state == "failed":
            done = f" after {cell.episodes} episodes" if cell.episodes else ""
            yield f"{place}: failed{done}. {cell.problem}"
        if cell.lost:
            yield (
                f"{place}: {cell.lost} episodes were lost to a fault and are excluded. Run the "
                "same command to play them again."
            )
    missing = sum(cell.state == "missing" for cell in cells)
    if missing:
        yield f"{missing} of {len(cells)} cells are missing. Run the same command to continue."
    for column, ledger in ledgers.items():
        for row in ledger.rows:
            yield from (f"{row.label} on {column}: {note}" for note in row.notes)


def main_grid(table: EvalTable) -> tuple[list[str], list[list[str]]]:
    """Return the column titles and the rows of the printed table."""
    asked = any(cell.tokens for cell in table.cells)
    heads = ["model", *(f"{column}, %" for column in table.columns)]
    heads += ["tokens of models", "USD"] if asked else []
    rows = []
    for row in table.rows:
        cells = [row, *(_format_result(table, row, column) for column in table.columns)]
        if asked:
            mine = [cell for cell in table.cells if cell.row == row]
            tokens, usd = sum(cell.tokens for cell in mine), sum(cell.usd for cell in mine)
            cells += [f"{tokens:,}" if tokens else "", _format_usd(tokens, usd)]
        rows.append(cells)
    return heads, rows


def explanations(table: EvalTable) -> Iterator[str]:
    """Yield the sentences below a table, apart from its notes."""
    if table.ledgers:
        yield (
            "Success with its 95 % interval over tasks: how far other tasks like these would move "
            "it."
        )
    if any(len(row.means) > 1 for ledger in table.ledgers.values() for row in ledger.rows):
        yield "± is the sample standard deviation over seeds."


def as_json(table: EvalTable) -> str:
    """Return a table as JSON, with rates in [0, 1]."""
    return json.dumps(to_json(table), indent=2, ensure_ascii=False) + "\n"


def to_json(table: EvalTable) -> dict[str, Any]:
    """Return a table as a JSON object, with rates in [0, 1]."""
    value: dict[str, Any] = replace_non_finite(asdict(table))
    results = [
        {"row": row, "column": column, **_result_to_json(table.result_of(row, column))}
        for row in table.rows
        for column in table.columns
    ]
    return {**value, "finished": table.is_finished, "results": replace_non_finite(results)}


def as_csv(table: EvalTable) -> str:
    """Return a table as CSV, with one line per row and column, and rates in [0, 1]."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = ("model", "benchmark", "state", "seeds", "tasks", "success", "low", "high", "sd")
    writer.writerow((*heads, "episodes", "lost", "tokens", "usd"))
    for row in table.rows:
        for column in table.columns:
            mine, result = table.cells_of(row, column), table.result_of(row, column)
            states = sorted({cell.state for cell in mine})
            numbers = (
                (None,) * 6
                if result is None
                else (
                    *(len(result.means), result.tasks, result.success),
                    *(result.low, result.high, result.repeat_sd),
                )
            )
            costs = (
                *(sum(cell.episodes for cell in mine), sum(cell.lost for cell in mine)),
                *(sum(cell.tokens for cell in mine), sum(cell.usd for cell in mine)),
            )
            writer.writerow(map(csv_cell, (row, column, "; ".join(states), *numbers, *costs)))
    return out.getvalue()


def as_markdown(table: EvalTable) -> str:
    """Return a table as Markdown."""
    parts = [
        f"# {table.title}",
        markdown_table(*main_grid(table)),
        *explanations(table),
        "\n".join(f"- {note}" for note in table.notes),
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


def _format_result(table: EvalTable, row: str, column: str) -> str:
    cells, result = table.cells_of(row, column), table.result_of(row, column)
    if result is None:
        return "failed" if any(cell.state == "failed" for cell in cells) else NOTHING
    text = f"{100 * result.success:.1f} [{100 * result.low:.1f}, {100 * result.high:.1f}]"
    if result.repeat_sd is not None:
        text += f" ± {100 * result.repeat_sd:.1f}"
    done = sum(cell.state == "finished" for cell in cells)
    return text if done == len(cells) else f"{text}, {done} of {len(cells)} seeds"


def _format_usd(tokens: int, usd: float) -> str:
    if not tokens:
        return ""
    return f"{usd:.2f}" if usd else "price not set"


def _result_to_json(row: LedgerRow | None) -> dict[str, Any]:
    if row is None:
        return {"success": None, "low": None, "high": None, "tasks": 0, "seeds": 0}
    return {
        "success": row.success,
        "low": row.low,
        "high": row.high,
        "tasks": row.tasks,
        "seeds": len(row.means),
    }
