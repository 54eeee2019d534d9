"""Tables of ``coevo eval FILE.toml``: models on benchmarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from coevo_gym.runs.evals.tables.table import TableResult, explanations, main_grid
from coevo_gym.store.folder import read_json
from coevo_gym.view.collection import RunCollection, raise_as_damaged
from coevo_gym.view.library import TableFolder
from coevo_gym.view.model.evals import eval_row
from coevo_gym.view.refusals import Damaged
from coevo_gym.view.rows import Shape


class EvalTableBrief(Shape):
    """A table of evaluations in a list.

    Attributes:
        id: id of the table, used in paths.
        title: its title; its name if the table's file cannot be read.
        models: number of its rows.
        benchmarks: number of its columns.
        cells: number of its evaluations by state.
    """

    id: str
    title: str
    models: int = 0
    benchmarks: int = 0
    cells: dict[str, int] = Field(default_factory=dict)


class EvalTableCell(Shape):
    """An evaluation of a table: a model on a benchmark with one seed.

    Attributes:
        row: name of the model.
        column: name of the benchmark.
        seed: the seed.
        eval: id of the evaluation; null if it does not exist.
        state: ``finished``, ``running``, ``failed``, or ``missing`` if it was not reached.
        done: number of finished episodes, if the evaluation is not finished.
        total: number of planned episodes; 0 if it is not known.
        problem: the reason of a failure, or "".
    """

    row: str
    column: str
    seed: int
    eval: str | None
    state: str
    done: int = 0
    total: int = 0
    problem: str = ""


class EvalTableDetail(Shape):
    """A table of evaluations with its results and cells.

    Attributes:
        id: id of the table.
        title: title of the table.
        path: path of its folder, for display.
        heads: titles of the printed columns.
        lines: the printed rows; the first text of each is the name of its model.
        results: results by model and benchmark, row by row.
        cells: the evaluations.
        explanations: sentences that explain the numbers.
        notes: remarks about finished cells and columns.
    """

    id: str
    title: str
    path: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    results: tuple[TableResult, ...]
    cells: tuple[EvalTableCell, ...]
    explanations: tuple[str, ...]
    notes: tuple[str, ...]


def eval_table_briefs(collection: RunCollection) -> Iterator[EvalTableBrief]:
    """Yield all tables of evaluations, by name."""
    for id, table in collection.library.eval_tables().items():
        try:
            content = _read_table(table)
            with raise_as_damaged():
                yield EvalTableBrief(
                    id=id,
                    title=content["title"],
                    models=len(content["rows"]),
                    benchmarks=len(content["columns"]),
                    cells=dict(Counter(cell.state for cell in _cells(collection, table, content))),
                )
        except Damaged:
            yield EvalTableBrief(id=id, title=table.path.name)  # its page shows the problem


def eval_table_detail(collection: RunCollection, id: str) -> EvalTableDetail:
    """Return a table of evaluations with its results and cells.

    Raises:
        NotFound: if there is no such table.
        Damaged: if the table's file or a cell cannot be read.
    """
    table = collection.library.get_eval_table(id)
    content = _read_table(table)
    with raise_as_damaged():
        results = tuple(TableResult(**one) for one in content["results"])
        heads, lines = main_grid(results)
        return EvalTableDetail(
            id=id,
            title=content["title"],
            path=str(table.path),
            heads=tuple(heads),
            lines=tuple(map(tuple, lines)),
            results=results,
            cells=tuple(_cells(collection, table, content)),
            explanations=tuple(explanations(results)),
            notes=tuple(content["notes"]),
        )


def _cells(
    collection: RunCollection, table: TableFolder, content: Mapping[str, Any]
) -> Iterator[EvalTableCell]:
    """Yield the cells in the table's file, with the present state of unfinished ones."""
    ids = {folder.path.absolute(): id for id, folder in collection.library.evals().items()}
    for cell in content["cells"]:
        folder = (table.path / Path(cell["folder"]).name).absolute()
        view = EvalTableCell(
            row=cell["row"],
            column=cell["column"],
            seed=cell["seed"],
            eval=ids.get(folder),
            state=cell["state"],
            problem=cell["problem"],
        )
        if view.eval is not None and view.state != "finished":
            row = eval_row(collection.get_evaluation(view.eval))
            state = "finished" if row.finished else "running" if row.running else view.state
            view = view.model_copy(update={"state": state, "done": row.done, "total": row.total})
        yield view


def _read_table(table: TableFolder) -> dict[str, Any]:
    with raise_as_damaged():
        data = read_json(table.file)
    if not isinstance(data, dict) or not isinstance(data.get("results"), list):
        raise Damaged(f"{table.file} contains no table. `coevo eval FILE.toml` writes it again.")
    return data
