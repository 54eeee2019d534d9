"""Tables: those of ``coevo experiment``, and evaluations on the same tasks in one table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.stats import mean_and_sd
from coevo_gym.runs.evals.ledger import LedgerRow, make_ledger
from coevo_gym.runs.evals.sides import find_result
from coevo_gym.runs.experiments.numbers import column
from coevo_gym.runs.experiments.table_parts import CURVES
from coevo_gym.store.folder import read_json
from coevo_gym.view.collection import RunCollection, ShownEval, ShownRun, raise_as_damaged
from coevo_gym.view.library import TableFolder
from coevo_gym.view.model.curves import SUCCESS, curves_in_table, mean_curves
from coevo_gym.view.model.eval_tables import EvalTableBrief, eval_table_briefs
from coevo_gym.view.model.run_progress import progress_of
from coevo_gym.view.refusals import BadRequest, Damaged, NotFound
from coevo_gym.view.rows import Shape


class TableBrief(Shape):
    """An experiment table in a list.

    Attributes:
        id: id of the table, used in paths.
        title: its title; its name if the table is not written yet.
        path: path of its folder, for display.
        cells: number of its runs by state.
    """

    id: str
    title: str
    path: str
    cells: dict[str, int]


class LedgerBrief(Shape):
    """A table of evaluations in a list.

    Attributes:
        id: id of the table, used in paths.
        benchmark: name of the benchmark.
        split: split of the tasks.
        panel: name and hash of the declared panel, or "".
        evals: ids of the evaluations, in the order of the list of evaluations.
        names: names of the evaluations, in the same order.
    """

    id: str
    benchmark: str
    split: str
    panel: str
    evals: tuple[str, ...]
    names: tuple[str, ...]


class TableList(Shape):
    """All tables that the viewer shows, by name."""

    tables: tuple[TableBrief, ...]
    eval_tables: tuple[EvalTableBrief, ...]
    ledgers: tuple[LedgerBrief, ...]


class CellView(Shape):
    """A cell of a table: one row with one seed.

    Attributes:
        row: key of the row.
        seed: seed of the run.
        run: id of the run; null if the table was made from a file of cells.
        state: state of the run.
        value: the table's metric; null if it is not known.
    """

    row: str
    seed: int
    run: str | None
    state: str
    value: float | None


class TableColumn(Shape):
    """A column of a table, with its title, and whether its values are shares in [0, 1]."""

    name: str
    title: str
    share: bool


class TableLineView(Shape):
    """A row of a table.

    Attributes:
        key: name of the row.
        label: printed label.
        seeds: number of seeds with a result.
        mean: mean of the metric over seeds.
        sd: sample standard deviation of the metric; null for a single seed.
        comparisons: comparisons with each baseline: ``baseline``, ``seeds``, ``mean``, ``low``,
            ``high``, ``wins``, ``ties``, ``p`` and ``p_sign``.
        columns: means of the other metrics.
        paper: the paper's numbers in its own units, by name.
    """

    key: str
    label: str
    seeds: int
    mean: float | None
    sd: float | None
    comparisons: tuple[dict[str, Any], ...] = ()
    columns: dict[str, float | None] = Field(default_factory=dict)
    paper: dict[str, float] = Field(default_factory=dict)


class TableDetail(Shape):
    """An experiment table with its rows and cells.

    Attributes:
        id: id of the table.
        title: title of the table.
        source: paper and table that it reproduces, or "".
        path: path of its folder, for display.
        benchmark: name of the benchmark.
        budget: budget of each cell; "" if the table is not written yet.
        metric: the metric on which rows are compared.
        lines: the rows.
        columns: further metrics that have values.
        cells: the cells, by row and seed.
        notes: remarks about the table.
        written: true if the rows come from the table's file, false if from its runs.
    """

    id: str
    title: str
    source: str
    path: str
    benchmark: str
    budget: str
    metric: TableColumn
    lines: tuple[TableLineView, ...]
    columns: tuple[TableColumn, ...]
    cells: tuple[CellView, ...]
    notes: tuple[str, ...]
    written: bool


class CurveView(Shape):
    """The mean success of a row over env steps, with one standard deviation over seeds.

    Attributes:
        label: label of the row.
        seeds: number of seeds.
        x: env steps.
        mean: mean success at each position.
        low: lower end of the band; empty for a single seed.
        high: upper end of the band.
    """

    label: str
    seeds: int
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


class TableCurves(Shape):
    """The curves of a table's rows. ``problem`` says why there are none, or is ""."""

    curves: tuple[CurveView, ...]
    problem: str = ""


class LedgerView(Shape):
    """Evaluations on the same tasks in one table; see :class:`~coevo_gym.runs.evals.ledger.Ledger`.

    Attributes:
        brief: the table's row in the list.
        rows: one row per policy.
        evals: id of each result's evaluation, by the result's name.
        remarks: sentences about the whole table.
    """

    brief: LedgerBrief
    rows: tuple[LedgerRow, ...]
    evals: dict[str, str]
    remarks: tuple[str, ...]


def table_list(collection: RunCollection) -> TableList:
    """Return all tables, by name."""
    return TableList(
        tables=tuple(
            _brief(collection, id, table) for id, table in collection.library.tables().items()
        ),
        eval_tables=tuple(eval_table_briefs(collection)),
        ledgers=tuple(_ledgers(collection)),
    )


def table_detail(collection: RunCollection, id: str) -> TableDetail:
    """Return a table with its rows and cells.

    Raises:
        NotFound: if there is no such table.
        Damaged: if the table's file cannot be read.
    """
    table = collection.library.get_table(id)
    content, runs = _read_table(table), collection.runs_of_table(id)
    with raise_as_damaged():
        values = (
            {line["key"]: _by_seed(line["values"]) for line in content["lines"]} if content else {}
        )
        cells = tuple(_cells(runs, values))
        lines = tuple(map(_line_view, content["lines"])) if content else tuple(_lines_of(cells))
        return TableDetail(
            id=id,
            title=content["title"] if content else table.path.name,
            source=content["source"] if content else "",
            path=str(table.path),
            benchmark=content["benchmark"] if content else _benchmark_of(runs),
            budget=content["budget"] if content else "",
            metric=_column_view(content["metric"] if content else SUCCESS),
            lines=lines,
            columns=tuple(map(_column_view, content["columns"])) if content else (),
            cells=cells,
            notes=tuple(content["notes"]) if content else (),
            written=content is not None,
        )


def table_curves(collection: RunCollection, id: str) -> TableCurves:
    """Return the success of a table's rows over env steps, from its runs or from its file.

    Raises:
        NotFound: if there is no such table.
        Damaged: if the table's file or a run cannot be read.
    """
    content = _read_table(collection.library.get_table(id))
    runs = [run for run in collection.runs_of_table(id) if _is_evaluated(run)]
    with raise_as_damaged():
        labels = {line["key"]: line["label"] for line in content["lines"]} if content else {}
        stored = content["parts"].get(CURVES, ()) if content else ()
    try:
        curves = mean_curves(runs) if runs else curves_in_table(stored, {})
    except ConfigError as error:
        return TableCurves(curves=(), problem=str(error))
    order = {key: place for place, key in enumerate(labels)}
    curves.sort(key=lambda curve: order.get(curve.label, len(order)))
    return TableCurves(
        curves=tuple(
            CurveView(**{**curve._asdict(), "label": labels.get(curve.label, curve.label)})
            for curve in curves
        )
    )


def ledger_detail(collection: RunCollection, id: str) -> LedgerView:
    """Return the evaluations on the same tasks in one table.

    Raises:
        NotFound: if there is no such table.
        BadRequest: if the evaluations cannot be in one table.
        Damaged: if an evaluation cannot be read.
    """
    briefs = {one.id: one for one in _ledgers(collection)}
    if id not in briefs:
        raise NotFound(
            f"There is no table {id[:100]!r} of evaluations here.",
            [f"ledgers/{name}" for name in briefs],
        )
    brief = briefs[id]
    evals = [collection.get_evaluation(one) for one in brief.evals]
    try:
        with raise_as_damaged():
            sides = [("", side) for one in evals for side in find_result(str(one.folder.path))]
            ledger = make_ledger(sides)
    except Damaged as error:
        if isinstance(error.__cause__, ConfigError):
            raise BadRequest(str(error)) from error
        raise
    return LedgerView(
        brief=brief,
        rows=ledger.rows,
        evals={str(one.folder.path): one.id for one in evals},
        remarks=ledger.remarks,
    )


def _ledgers(collection: RunCollection) -> Iterator[LedgerBrief]:
    """Yield the groups of at least two evaluations that can be in one table."""
    groups: dict[tuple[str, str, str], list[ShownEval]] = {}
    for one in collection.evals():
        try:
            config = one.config
            if one.episode_lines:
                panel = one.folder.read_panel().reference if "panel" in config else ""
                groups.setdefault((config["benchmark"], config["split"], panel), []).append(one)
        except (Damaged, ConfigError):
            continue  # the list of evaluations shows the problem
    for (benchmark, split, panel), evals in sorted(groups.items()):
        if len(evals) > 1:
            id = "-".join(part for part in (benchmark, split, panel.replace(" ", "-")) if part)
            yield LedgerBrief(
                id=id,
                benchmark=benchmark,
                split=split,
                panel=panel,
                evals=tuple(one.id for one in evals),
                names=tuple(one.name for one in evals),
            )


def _brief(collection: RunCollection, id: str, table: TableFolder) -> TableBrief:
    try:
        content = _read_table(table)
        title = str(content["title"]) if content else table.path.name
    except (Damaged, KeyError):
        title = table.path.name  # the table's page shows the problem
    states = Counter(_state_of(run) for run in collection.runs_of_table(id))
    return TableBrief(id=id, title=title, path=str(table.path), cells=dict(sorted(states.items())))


def _read_table(table: TableFolder) -> dict[str, Any] | None:
    """Return the contents of a table's file, or None if the table is not written yet."""
    if not table.file.is_file():
        return None
    with raise_as_damaged():
        data = read_json(table.file)
    if not isinstance(data, dict) or not isinstance(data.get("lines"), list):
        raise Damaged(f"{table.file} contains no table. `coevo experiment` writes it again.")
    return data


def _cells(
    runs: Sequence[ShownRun], values: Mapping[str, Mapping[int, float]]
) -> Iterator[CellView]:
    """Yield the cells of the runs, then those that only the table's file knows."""
    seen = set()
    for run in runs:
        row, seed = _row_and_seed(run)
        seen.add((row, seed))
        value = values.get(row, {}).get(seed, _success_of(run, row))
        yield CellView(row=row, seed=seed, run=run.id, state=_state_of(run), value=value)
    for row, by_seed in values.items():
        for seed, value in by_seed.items():
            if (row, seed) not in seen:
                yield CellView(row=row, seed=seed, run=None, state="finished", value=value)


def _lines_of(cells: Sequence[CellView]) -> Iterator[TableLineView]:
    """Yield rows with the mean success of their finished cells, for a table without a file."""
    for row in dict.fromkeys(cell.row for cell in cells):
        values = [cell.value for cell in cells if cell.row == row and cell.value is not None]
        mean, sd = mean_and_sd(values) if values else (math.nan, math.nan)
        yield TableLineView(key=row, label=row, seeds=len(values), mean=mean, sd=sd)


def _line_view(line: Mapping[str, Any]) -> TableLineView:
    names = ("key", "label", "mean", "sd", "columns", "paper")
    comparisons = tuple({**one, "seeds": len(one["seeds"])} for one in line["comparisons"])
    return TableLineView(
        **{name: line[name] for name in names}, seeds=len(line["values"]), comparisons=comparisons
    )


def _column_view(name: str) -> TableColumn:
    title, form = column(name)
    return TableColumn(name=name, title=title, share="%" in form)


def _by_seed(values: Mapping[str, float]) -> dict[int, float]:
    return {int(seed): value for seed, value in values.items()}


def _row_and_seed(run: ShownRun) -> tuple[str, int]:
    row, _, seed = run.folder.path.name.rpartition("-")
    return (row, int(seed)) if row and seed.isdecimal() else (run.folder.path.name, 0)


def _state_of(run: ShownRun) -> str:
    try:
        return progress_of(run).state
    except Damaged:
        return "damaged"


def _success_of(run: ShownRun, row: str) -> float | None:
    """Return the success of a finished cell; None if it is not finished or not readable."""
    try:
        table = (run.summary or {}).get("table", ())
        return next((float(one["success"]) for one in table if one["name"] == row), None)
    except (Damaged, KeyError, TypeError, ValueError):
        return None


def _is_evaluated(run: ShownRun) -> bool:
    try:
        return all(run.arm_metrics(arm, "eval") for arm in run.config.arms)
    except Damaged:
        return False


def _benchmark_of(runs: Sequence[ShownRun]) -> str:
    for run in runs:
        try:
            return run.config.benchmark.name
        except Damaged:
            continue
    return ""
