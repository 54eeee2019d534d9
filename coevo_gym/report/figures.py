"""The figures of a report: selection of data, chart type and style."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import coevo_gym.curricula.signals.kinds  # noqa: F401 (registers the kinds that come with us)
from coevo_gym.core.kinds import Kind, kind_of, kinds
from coevo_gym.report.bars import (
    Column,
    ColumnChart,
    ColumnPanel,
    Fill,
    Row,
    RowChart,
    draw_columns,
    draw_rows,
)
from coevo_gym.report.charts import LineChart, Lines, Rug, Series, draw_lines
from coevo_gym.report.data import Curve, CurvePoint, ReportData
from coevo_gym.report.svg import Element, nice_ticks, nice_top
from coevo_gym.report.words import compact, count, percent, spread

WIDE, SMALL = 760, 344
"""Widths in pixels of a figure on a screen or page, and on a phone."""

MAX_POINTS = 300
"""Maximum number of points per line before it is thinned out."""

MAX_MARKS = 40
"""Maximum number of points per line that are marked individually."""

STEPS_LABEL = "env steps, exploration included"


_SET_STYLES = (5, 3, 4, 2)
"""Colours of task sets: the last ones, to avoid confusion with arms."""


class Figure(NamedTuple):
    """The same figure in two widths; a style sheet shows the one that fits."""

    wide: Element
    small: Element


def arm_styles(data: ReportData) -> dict[str, int]:
    """Return the style number of each arm: the main arm first, then in order of appearance."""
    names = [curve.arm for curve in data.curves + data.training]
    names += [row.arm for row in data.rounds] + [item.arm for item in data.rejections]
    names += [row.arm for row in data.lineage] + [item.arm for item in data.spreads]
    names.sort(key=lambda name: name != focus_arm(data))
    return {name: i for i, name in enumerate(dict.fromkeys(names))}


def focus_arm(data: ReportData) -> str:
    """Return the main arm of the report: the last arm of the table, or else of the curves."""
    if data.table:
        return data.table[-1].name
    return data.curves[-1].arm if data.curves else ""


def success_figure(data: ReportData) -> Figure | None:
    """Draw held-out success over env steps, with intervals and with rounds as ticks."""
    return _lines(success_chart(data, "success"))


def training_figure(data: ReportData) -> Figure | None:
    """Draw success on each arm's own training tasks."""
    panel = _success_panel(data, data.training, "success on training tasks", 150)
    title = "Training success over env steps"
    text = "One line for each arm: success on the tasks that it trained on."
    return _lines(
        LineChart("training", title, text, (panel,), STEPS_LABEL, _right(data, data.training))
    )


def pool_figure(data: ReportData) -> Figure | None:
    """Draw the size of the pool and, below, the share of accepted drafts per round."""
    panels = (pool_panel(data, 150), _pass_rate_panel(data))
    title = "Pool size and pass rate over env steps"
    text = "Above: tasks in the pool of each arm. Below: share of each round's drafts accepted."
    return _lines(LineChart("pool", title, text, panels, STEPS_LABEL, _right(data)))


def warmup_figure(data: ReportData) -> Figure | None:
    """Draw the loss of the imitation steps before training."""
    losses = data.warmup_loss
    points = tuple(CurvePoint(i + 1, losses[i]) for i in spread(len(losses), MAX_POINTS))
    top = nice_top(max((v for v in losses if math.isfinite(v)), default=0.0), 4)
    series = Series("", 0, points, marks=len(points) < 2)
    panel = Lines((series,), "loss", top, nice_ticks(top, 4), lambda v: f"{v:.3g}", 130)
    text = f"Loss over {len(losses)} imitation steps."
    return _lines(
        LineChart("warmup", "Warm-up loss", text, (panel,), "imitation step", max(len(losses), 1))
    )


def success_chart(data: ReportData, id: str, height: float = 250) -> LineChart:
    """Return the chart of held-out success."""
    panel = _success_panel(data, data.curves, "success on held-out tasks", height)
    title = "Success on held-out tasks over env steps"
    text = (
        "One line for each arm with its 95 % interval as a band; ticks below the axis mark rounds."
    )
    return LineChart(id, title, text, (panel,), STEPS_LABEL, _right(data), _rugs(data))


def pool_panel(data: ReportData, height: float) -> Lines:
    """Return the panel with each arm's pool size over env steps."""
    styles, focus = arm_styles(data), focus_arm(data)
    series = []
    for arm in dict.fromkeys(row.arm for row in data.rounds):
        points = tuple(
            CurvePoint(row.env_steps, row.pool_size) for row in data.rounds if row.arm == arm
        )
        series.append(Series(arm, styles[arm], points, steps=True, bold=arm == focus))
    top = nice_top(max((row.pool_size for row in data.rounds), default=0), 4, whole=True)
    ticks = nice_ticks(top, 4, whole=True)
    return Lines(tuple(series), "tasks in the pool", top, ticks, count, height)


def shown_kinds(data: ReportData) -> list[Kind]:
    """Return the registered kinds that occur in a report, in order of registration."""
    found = {kind for row in data.rounds for kind in row.signals}
    found |= {row.signal for row in data.lineage}
    return [kind for kind in kinds() if kind.name in found]


def signals_figure(data: ReportData) -> Figure | None:
    """Draw the signals of each round, stacked by kind, with one panel per arm."""
    found = {kind for row in data.rounds for kind in row.signals}
    known = [kind.name for kind in kinds() if kind.name in found]
    stacked = known + sorted(found.difference(known))
    panels = []
    for arm in dict.fromkeys(row.arm for row in data.rounds):
        mine = [row for row in data.rounds if row.arm == arm]
        columns = tuple(
            Column(str(i), tuple(float(row.signals.get(k, 0)) for k in stacked))
            for i, row in enumerate(mine)
        )
        if any(sum(column.values) > 0 for column in columns):
            panels.append(ColumnPanel(arm, columns))
    most = max((sum(c.values) for p in panels for c in p.columns), default=0.0)
    fills = tuple(
        Fill(kind_of(name).label, _kind_class(name), i % 4) for i, name in enumerate(stacked)
    )
    return _columns(
        ColumnChart(
            "signals", "Signals of each round by kind",
            "Stacked bars: how many signals of each kind led to a round.",
            fills, tuple(panels), True, "round", "signals",
            nice_top(most, 4, whole=True), compact, height=130,
        )
    )  # fmt: skip


def similarity_figure(data: ReportData) -> Figure | None:
    """Draw the similarity of task sets to the held-out tasks, as shares of each set."""
    n = max((len(item.counts) for item in data.similarity), default=0)
    totals = [sum(item.counts) for item in data.similarity]
    shares = [
        [c / total if total else 0.0 for c in item.counts] + [0.0] * (n - len(item.counts))
        for item, total in zip(data.similarity, totals, strict=True)
    ]
    columns = tuple(
        Column(f"{i / n:.1f}" if n <= 10 else f"{i / n:.2f}", tuple(s[i] for s in shares))
        for i in range(n)
    )
    fills = tuple(
        Fill(f"{item.label} ({total:,} tasks)", f"s{_SET_STYLES[i % 4]}", i % 4)
        for i, (item, total) in enumerate(zip(data.similarity, totals, strict=True))
    )
    top = nice_top(max((v for s in shares for v in s), default=0.0), 4)
    return _columns(
        ColumnChart(
            "similarity", "Similarity to the held-out tasks",
            "Bars: share of each set of tasks by highest cosine to a held-out intent.",
            fills, (ColumnPanel("", columns),), False, "highest cosine to a held-out intent",
            "share of tasks", top, lambda v: percent(v, 0), last="1.0", whole=False,
        )
    )  # fmt: skip


def gates_figure(data: ReportData) -> Figure | None:
    """Draw the number of drafts that each gate rejected, in descending order."""
    styles = arm_styles(data)
    arms = sorted({item.arm for item in data.rejections}, key=styles.__getitem__)
    total: dict[str, dict[str, int]] = {}
    for item in data.rejections:
        mine = total.setdefault(item.gate, {})
        mine[item.arm] = mine.get(item.arm, 0) + item.count
    gates = sorted(total, key=lambda gate: (-sum(total[gate].values()), gate))
    if not gates:
        return None
    fills = tuple(
        Fill(arm, f"s{styles[arm] % 6}", 0 if len(arms) == 1 else i % 4)
        for i, arm in enumerate(arms)
    )
    rows = tuple(Row(gate, tuple(float(total[gate].get(a, 0)) for a in arms)) for gate in gates)
    text = "Horizontal bars: drafts that each gate rejected."
    chart = RowChart("gates", "Rejected drafts by gate", text, fills, rows)
    return Figure(draw_rows(chart, WIDE), draw_rows(replace(chart, id="gates-small"), SMALL))


def _success_panel(data: ReportData, curves: Sequence[Curve], label: str, height: float) -> Lines:
    styles, focus = arm_styles(data), focus_arm(data)
    series = []
    for curve in curves:
        points = tuple(curve.points[i] for i in spread(len(curve.points), MAX_POINTS))
        marks = len(points) <= MAX_MARKS
        series.append(
            Series(curve.arm, styles[curve.arm], points, False, curve.arm == focus, marks)
        )
    series.sort(key=lambda s: s.bold)
    highest = max(
        (v for s in series for p in s.points for v in (p.success, p.high) if math.isfinite(v)),
        default=1.0,
    )
    top = next((t for t in (0.25, 0.5, 0.75) if highest <= t), 1.0)
    ticks = nice_ticks(top, 5 if top != 0.75 else 3)
    return Lines(tuple(series), label, top, ticks, lambda v: percent(v, _digits(v)), height)


def _digits(share: float) -> int:
    return 0 if abs(share * 100 - round(share * 100)) < 1e-9 else 1


def _pass_rate_panel(data: ReportData) -> Lines:
    styles, focus = arm_styles(data), focus_arm(data)
    series = []
    for arm in dict.fromkeys(row.arm for row in data.rounds):
        points = tuple(
            CurvePoint(row.env_steps, row.pass_rate) for row in data.rounds if row.arm == arm
        )
        series.append(Series(arm, styles[arm], points, bold=arm == focus))
    write: Callable[[float], str] = lambda v: percent(v, _digits(v))  # noqa: E731
    return Lines(tuple(series), "drafts accepted", 1.0, (0.0, 0.5, 1.0), write, 90, named=False)


def _right(data: ReportData, curves: Sequence[Curve] = ()) -> float:
    steps = [p.env_steps for c in (*data.curves, *curves) for p in c.points]
    steps += [row.env_steps for row in data.rounds]
    most = max((s for s in steps if math.isfinite(s)), default=0.0)
    return most if most > 0 else 1.0


def _rugs(data: ReportData) -> tuple[Rug, ...]:
    styles = arm_styles(data)
    return tuple(
        Rug(arm, styles[arm], tuple(row.env_steps for row in data.rounds if row.arm == arm))
        for arm in dict.fromkeys(row.arm for row in data.rounds)
    )


def _kind_class(name: str) -> str:
    return f"k-{name}" if any(kind.name == name for kind in kinds()) else "k-other"


def _lines(chart: LineChart) -> Figure | None:
    if chart.empty:
        return None
    small = replace(chart, id=f"{chart.id}-small")
    return Figure(draw_lines(chart, WIDE), draw_lines(small, SMALL))


def _columns(chart: ColumnChart) -> Figure | None:
    if chart.empty:
        return None
    small = replace(chart, id=f"{chart.id}-small")
    return Figure(draw_columns(chart, WIDE), draw_columns(small, SMALL))
