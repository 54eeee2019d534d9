"""The picture: speed of training over tokens a pass, speed of sampling over answers at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from textwrap import wrap
from typing import Any

from gpu_parts.table import described

from coevo_gym.report.charts import LineChart, Lines, Series, draw_lines
from coevo_gym.report.data import CurvePoint
from coevo_gym.report.svg import Element, el, nice_ticks, nice_top
from coevo_gym.report.words import compact, percent

WIDTH, EDGE = 860, 24
LINE = 125
"""Characters in a line of text."""
Row = Mapping[str, Any]


def picture(found: Mapping[str, Any]) -> str:
    """Return an SVG file: a chart for each part with rows to draw, a line for each other part."""
    title = f"{found['card']}, {found['date']}, PyTorch {found['software']['torch']}"
    parts = [_text(title, EDGE, "bold")]
    y = EDGE + 20.0
    for line in _lines(found):
        parts.append(_text(line, y, "axis-label"))
        y += 17
    charts = [
        _chart(found["train"], "train", _training_name, "budget_tokens", _TRAINING),
        _chart(found["rollout"], "rollout", _rollout_name, "batch", _ROLLOUT),
    ]
    for chart in charts:
        if chart.empty:
            continue
        parts.append(_text(chart.title, y + 22, "bold"))
        y += 34
        drawn = draw_lines(chart, WIDTH - 2 * EDGE)
        height = float(dict(drawn.attributes)["height"])
        parts.append(el("svg", drawn, x=EDGE, y=y, width=WIDTH - 2 * EDGE, height=height))
        y += height + 8
    y += 8
    style = files("coevo_gym.report").joinpath("templates/figure.css").read_text(encoding="utf-8")
    paper = el("rect", width=WIDTH, height=y, style="fill: var(--paper)")
    inner = "".join(map(str, [paper, *parts]))
    size = f'viewBox="0 0 {WIDTH} {y:g}" width="{WIDTH}" height="{y:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n'
        f"<style>\n{style}</style>\n{inner}\n</svg>\n"
    )


def _text(text: str, y: float, style: str) -> Element:
    return el("g", el("text", text, class_=style, x=EDGE, y=y), class_="chart")


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Return the results that the charts do not show, in lines that fit."""
    said = [*found["notes"], "; ".join(map(described, found["models"]))]
    equal = _measured(found["equal"])
    if equal:
        good = sum(row["ok"] for row in equal)
        said.append(f"equal: {good} of {len(equal)} precisions within the tolerances")
    for row in _measured(found["train"]):
        if row.get("out_of_memory"):
            tokens = f"{row['budget_tokens']:,} tokens a pass"
            said.append(f"train: {_training_name(row)}, {tokens}: out of memory")
    for row in _measured(found["rollout"]):
        if "remark" in row:
            said.append(f"rollout: {_rollout_name(row)}: {row['remark']}")
    said += [
        f"{part}: {found[part]}"
        for part in ("equal", "train", "rollout", "learn")
        if isinstance(found[part], str) and found[part] != "not run"
    ]
    for text in said:
        yield from wrap(text, LINE, max_lines=3, placeholder=" …")


def _measured(part: object) -> Sequence[Row]:
    """Return the rows of a part; none if it was skipped."""
    return part if isinstance(part, list) else []


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


def _chart(rows: object, part: str, name: Any, over: str, panels: Any) -> LineChart:
    drawn = [row for row in _measured(rows) if over in row]
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
    if write is percent:
        write = partial(percent, digits=0 if top >= 0.05 else 1)  # there is no room for 100.0 %
    return Lines(tuple(series), label, top, nice_ticks(top), write, height=160, named=named)


def _training_name(row: Row) -> str:
    return f"{row['model']}{', checkpointing' if row['checkpointing'] else ''}"


def _rollout_name(row: Row) -> str:
    return f"{row['model']}: {row['engine']}"
