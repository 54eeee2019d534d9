"""Figures about tasks and episodes: a map, the diversity of tasks, and episode lengths."""

from __future__ import annotations

import math
from dataclasses import replace

from coevo_gym.report.bars import Column, ColumnChart, ColumnPanel, Fill, draw_columns
from coevo_gym.report.charts import LineChart, Lines, Series, draw_lines
from coevo_gym.report.data import ArmLengths, CurvePoint, ReportData
from coevo_gym.report.figures import SMALL, WIDE, Figure, arm_styles, focus_arm
from coevo_gym.report.maps import MapChart, draw_map
from coevo_gym.report.svg import nice_ticks, nice_top
from coevo_gym.report.words import compact, decimal, percent

MAX_BINS = 20
"""Maximum number of columns in a histogram of steps."""


def map_figure(data: ReportData) -> Figure | None:
    """Draw the map of each arm's tasks, coloured by the round that found them."""
    text = "Points: tasks, placed by their words; colour and mark tell the rounds that found them."
    chart = MapChart("map", "Map of the tasks by round", text, data.maps)
    if chart.empty:
        return None
    small = replace(chart, id="map-small", notes=False)
    return Figure(draw_map(chart, WIDE), draw_map(small, SMALL))


def spread_figure(data: ReportData) -> Figure | None:
    """Draw SR@5 of each arm's pool and ED_rel of its evolved tasks, round by round."""
    last = max((spread.round for arm in data.spreads for spread in arm.rounds), default=0)
    panels = (_panel(data, "likeness"), _panel(data, "distance"))
    title = "How the tasks spread out"
    text = "Above: SR@5 of each arm's pool. Below: energy distance of evolved tasks from D_0."
    chart = LineChart("spread", title, text, panels, "round; 0 is D_0", max(last, 1))
    if chart.empty:
        return None
    small = replace(chart, id="spread-small")
    return Figure(draw_lines(chart, WIDE), draw_lines(small, SMALL))


def lengths_figure(data: ReportData) -> Figure | None:
    """Draw the env steps of evaluation episodes, stacked by success and failure."""
    steps = [n for arm in data.lengths for n in (*arm.solved, *arm.failed)]
    if not steps:
        return None
    low, most = min(1, *steps), max(steps)
    size = math.ceil((most - low + 1) / MAX_BINS)
    panels = tuple(_histogram(arm, low, most, size) for arm in data.lengths)
    top = max(sum(column.values) for panel in panels for column in panel.columns)
    chart = ColumnChart(
        "lengths", "Steps of evaluation episodes",
        "Stacked bars: how many episodes took so many steps, solved and failed.",
        (Fill("solved", "s2"), Fill("failed", "s1", 1)), panels, True, "env steps of an episode",
        "episodes", nice_top(top, 4, whole=True), compact, height=110,
    )  # fmt: skip
    small = replace(chart, id="lengths-small")
    return Figure(draw_columns(chart, WIDE), draw_columns(small, SMALL))


def _panel(data: ReportData, what: str) -> Lines:
    styles, focus = arm_styles(data), focus_arm(data)
    series = []
    for arm in data.spreads:
        points = tuple(CurvePoint(spread.round, getattr(spread, what)) for spread in arm.rounds)
        series.append(Series(arm.arm, styles[arm.arm], points, bold=arm.arm == focus))
    values = [v for s in series for p in s.points if math.isfinite(v := p.success)]
    top = nice_top(max(values, default=0.0), 4)
    ticks = nice_ticks(top, 4)
    if what == "likeness":
        label = "SR@5 of the pool: lower is more diverse"
        return Lines(tuple(series), label, top, ticks, lambda v: decimal(v, 2), 120)
    label = "ED_rel of evolved tasks from D_0"
    return Lines(tuple(series), label, top, ticks, lambda v: percent(v, 0), 120, named=False)


def _histogram(arm: ArmLengths, low: int, most: int, size: int) -> ColumnPanel:
    columns = []
    for start in range(low, most + 1, size):
        counts = tuple(
            float(sum(start <= n < start + size for n in steps))
            for steps in (arm.solved, arm.failed)
        )
        end = min(start + size - 1, most)
        label = str(start) if start == end else f"{start}–{end}"
        columns.append(Column(label, counts))
    return ColumnPanel(arm.arm, tuple(columns))
