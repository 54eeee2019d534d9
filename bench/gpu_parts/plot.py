"""The picture: speed of training over tokens a pass, speed of sampling over answers at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from coevo_gym.report.charts import LineChart, Lines, Series, draw_lines
from coevo_gym.report.data import CurvePoint
from coevo_gym.report.svg import Element, el, nice_ticks, nice_top
from coevo_gym.report.words import compact, percent

WIDTH, EDGE, HEADING = 860, 24, 40
Row = Mapping[str, Any]


def picture(results: Mapping[str, Any], title: str) -> str:
    """An SVG file with a chart for each part that has rows to draw."""
    charts = [
        _chart(results.get("train"), "train", _training_name, "budget_tokens", _TRAINING),
        _chart(results.get("rollout"), "rollout", _rollout_name, "batch", _ROLLOUT),
    ]
    parts: list[Element] = []
    y = HEADING + 20.0
    for chart in charts:
        if chart is None or chart.empty:
            continue
        drawn = draw_lines(chart, WIDTH - 2 * EDGE)
        height = float(dict(drawn.attributes)["height"])
        parts.append(el("svg", drawn, x=EDGE, y=y, width=WIDTH - 2 * EDGE, height=height))
        y += height + 24
    style = files("coevo_gym.report").joinpath("templates/figure.css").read_text(encoding="utf-8")
    paper = el("rect", width=WIDTH, height=y, style="fill: var(--paper)")
    heading = el("g", el("text", title, class_="bold", x=EDGE, y=HEADING), class_="chart")
    inner = "".join(map(str, [paper, heading, *parts]))
    size = f'viewBox="0 0 {WIDTH} {y:g}" width="{WIDTH}" height="{y:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n'
        f"<style>\n{style}</style>\n{inner}\n</svg>\n"
    )


_TRAINING = (
    ("tokens a second, in steps", "step_tokens_per_s", compact),
    ("MFU", "mfu", percent),
)
_ROLLOUT = (
    ("sampled tokens a second", "tokens_per_s", compact),
    ("share of the decode roofline", "roofline_share", percent),
)
_LABELS = {
    "train": ("Training: GRPO updates", "tokens in a forward pass"),
    "rollout": ("Rollouts: sampling", "answers at a time"),
}


def _chart(rows: object, part: str, name: Any, over: str, panels: Any) -> LineChart | None:
    if not isinstance(rows, list):
        return None
    drawn = [row for row in rows if over in row]
    names = list(dict.fromkeys(name(row) for row in drawn))
    title, x_label = _LABELS[part]
    lines = tuple(
        _panel(drawn, names, name, over, *panel, named=i == 0) for i, panel in enumerate(panels)
    )
    right = max((float(row[over]) for row in drawn), default=1.0)
    return LineChart(part, title, f"{title}, a line for each setting.", lines, x_label, right)


def _panel(
    rows: Sequence[Row],
    names: Sequence[str],
    name: Any,
    over: str,
    label: str,
    key: str,
    write: Any,
    *,
    named: bool,
) -> Lines:
    series = []
    for style, one in enumerate(names):
        mine = [row for row in rows if name(row) == one and row.get(key) is not None]
        points = tuple(CurvePoint(float(row[over]), float(row[key])) for row in mine)
        series.append(Series(one, style, points))
    top = nice_top(max((p.success for s in series for p in s.points), default=1.0))
    return Lines(tuple(series), label, top, nice_ticks(top), write, height=160, named=named)


def _training_name(row: Row) -> str:
    return f"{row['model']}{', checkpointing' if row['checkpointing'] else ''}"


def _rollout_name(row: Row) -> str:
    return f"{row['model']}: {row['engine']}"
