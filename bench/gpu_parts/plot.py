"""Charts of training speed by tokens per pass, and of sampling speed by batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from textwrap import wrap
from typing import Any

from gpu_parts.table import describe_model

from coevo_gym.core.spaces import make_visible
from coevo_gym.view.export.curve import Line, Point, draw_chart, to_svg_file
from coevo_gym.view.numbers import format_compact, format_percent

SIZE = (812.0, 250.0)
LINE = 125
"""Maximum characters per line of text."""
Row = Mapping[str, Any]


def render_svg(results: Mapping[str, Any]) -> str:
    """Return an SVG file with charts of each measured part and a line for each other part."""
    title = f"{results['card']}, {results['date']}, PyTorch {results['software']['torch']}"
    charts = [
        *_draw_charts(results["train"], "train", _training_name, "budget_tokens", _TRAINING),
        *_draw_charts(results["rollout"], "rollout", _rollout_name, "batch", _ROLLOUT),
    ]
    return _stack_charts(charts, [title, *_caption_lines(results)])


def _stack_charts(charts: Sequence[str], heading: Sequence[str]) -> str:
    """Return an SVG file with the charts below each other, under a heading with a bold title."""
    edge, top = 24.0, 24.0 + 18 * len(heading)
    width, height = SIZE[0] + 2 * edge, top + len(charts) * SIZE[1] + edge / 2
    looks = ['fill="var(--chart-ink)" font-weight="bold"'] + ['fill="var(--chart-soft)"'] * len(
        heading
    )
    parts = [
        f'<text x="{edge:g}" y="{28 + 18 * i}" {look}>{escape(make_visible(line))}</text>'
        for i, (line, look) in enumerate(zip(heading, looks, strict=False))
    ]
    parts += [
        f'<g transform="translate({edge:g} {top + i * SIZE[1]:g})">{chart}</g>'
        for i, chart in enumerate(charts)
    ]
    return to_svg_file("".join(parts), width, height)


def _caption_lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Return the results that the charts do not show, wrapped into lines."""
    lines = [*results["notes"], "; ".join(map(describe_model, results["models"]))]
    equal = _measured_rows(results["equal"])
    if equal:
        good = sum(row["ok"] for row in equal)
        lines.append(f"equal: {good} of {len(equal)} precisions within the tolerances")
    for row in _measured_rows(results["train"]):
        if row.get("out_of_memory"):
            tokens = f"{row['budget_tokens']:,} tokens per pass"
            lines.append(f"train: {_training_name(row)}, {tokens}: out of memory")
    for row in _measured_rows(results["rollout"]):
        if "remark" in row:
            lines.append(f"rollout: {_rollout_name(row)}: {row['remark']}")
    lines += [
        f"{part}: {results[part]}"
        for part in ("equal", "train", "rollout")
        if isinstance(results[part], str) and results[part] != "not run"
    ]
    for text in lines:
        yield from wrap(text, LINE, max_lines=3, placeholder=" …")


def _measured_rows(part: object) -> Sequence[Row]:
    """Return the rows of a part, or no rows if it was skipped."""
    return part if isinstance(part, list) else []


_TRAINING = (
    ("tokens per second, in steps", "step_tokens_per_s", format_compact),
    ("MFU", "mfu", format_percent),
)
_ROLLOUT = (
    ("sampled tokens per second", "tokens_per_s", format_compact),
    ("share of the decode roofline", "roofline_share", format_percent),
)
_LABELS = {
    "train": ("Training: GRPO updates", "tokens in a forward pass"),
    "rollout": ("Rollouts: sampling", "answers per batch"),
}


def _draw_charts(
    rows: object, part: str, name: Callable[[Row], str], over: str, measures: Any
) -> Iterator[str]:
    """Yield a chart for each measure of a part, with one line per setting."""
    measured = [row for row in _measured_rows(rows) if over in row]
    title, x_label = _LABELS[part]
    for label, key, write in measures:
        lines = [
            Line(one, [Point(float(row[over]), float(row[key])) for row in mine])
            for one in dict.fromkeys(map(name, measured))
            if (mine := [row for row in measured if name(row) == one and row.get(key) is not None])
        ]
        if lines:
            yield draw_chart(lines, title, x_label, f"{title}: {label}", write=write, size=SIZE)


def _training_name(row: Row) -> str:
    kinds = (kind for kind in ("checkpointing", "compiled") if row[kind])
    return ", ".join([row["model"], *kinds])


def _rollout_name(row: Row) -> str:
    return f"{row['model']}: {row['engine']}"
