"""Small line charts as SVG, for pages without JavaScript."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from coevo_gym.core.spaces import make_visible
from coevo_gym.view.numbers import format_compact, format_percent
from coevo_gym.view.shell import STATIC

DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2 1 2 1 2", "12 4")
"""Dashes and gaps of the lines, in pixels."""
COLOURS = ("#0068a8", "#b84a00", "#00755a", "#9c4a78", "#8a6100", "#5c5c66")
"""Colours of the lines on white, as in the charts' style sheet."""
_LEFT, _RIGHT, _BOTTOM, _ROW = 52.0, 16.0, 44.0, 19.0
_LETTER = 6.7
"""Average width of a letter in pixels."""
_LONGEST = 60
_PAIR = re.compile(r"(--chart-\w+): light-dark\((#\w+), (#\w+)\)")
_VARIABLE = re.compile(r"var\((--chart-\w+)(?:, #\w+)?\)")


class Point(NamedTuple):
    """A point on a line, optionally with the bounds of a confidence interval."""

    x: float
    y: float
    low: float = math.nan
    high: float = math.nan


class Line(NamedTuple):
    """A named line with its points in order; non-finite points leave gaps."""

    label: str
    points: Sequence[Point]


def draw_chart(
    lines: Sequence[Line],
    title: str,
    x_label: str,
    y_label: str,
    *,
    write: Callable[[float], str] = lambda share: format_percent(share, 0),
    size: tuple[float, float] = (760.0, 300.0),
) -> str:
    """Draw a line chart with shaded intervals and a legend.

    Args:
        lines: the lines, at least one with a finite point.
        title: title for screen readers.
        x_label: label of the horizontal axis.
        y_label: label of the vertical axis.
        write: function that formats values.
        size: width and height in pixels.

    Returns:
        An ``<svg>`` element. Identical arguments produce identical bytes.
    """
    width, height = size
    legend, top = _draw_legend(lines, width)
    ends = [v for line in lines for p in line.points for v in (p.y, p.low, p.high)]
    right = axis_top(max(_finite_values(p.x for line in lines for p in line.points), default=1.0))
    highest = axis_top(max(_finite_values(ends), default=1.0))
    x_span, y_span = width - _LEFT - _RIGHT, height - top - _BOTTOM

    def x(value: float) -> float:
        return _LEFT + value / right * x_span

    def y(value: float) -> float:
        return top + (1 - value / highest) * y_span

    parts = [*legend, _text_element(y_label, 2, top - 9, soft=True)]
    for value in ticks(highest):
        at = y(value)
        parts.append(
            f'<line x1="{_LEFT:g}" x2="{width - _RIGHT:g}" y1="{at:.1f}" y2="{at:.1f}" '
            'stroke="var(--chart-rule, #d5dae0)"/>'
        )
        parts.append(_text_element(write(value), _LEFT - 7, at + 4, anchor="end", soft=True))
    for value in ticks(right):
        bottom = height - _BOTTOM + 17
        parts.append(
            _text_element(format_compact(value), x(value), bottom, anchor="middle", soft=True)
        )
    parts.append(_text_element(x_label, _LEFT + x_span / 2, height - 8, anchor="middle", soft=True))
    for style, line in enumerate(lines):
        parts += _draw_line(line, style, x, y, write)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        'class="coevo-plot" font-family="sans-serif" font-size="12">'
        f"<title>{_escape(title)}</title>"
        f"{''.join(parts)}</svg>"
    )


def to_svg_file(content: str, width: float, height: float) -> str:
    """Return a standalone SVG file with the charts' colours.

    Colours are plain, which every program draws. Browsers use the dark ones in dark mode.
    """
    pairs = _PAIR.findall(chart_colours())
    light = {name: day for name, day, _ in pairs}
    plain = _VARIABLE.sub(lambda match: light.get(match[1], match[0]), content)
    dark = "".join(
        f'[{paint}="{day}"] {{ {paint}: {night}; }} '
        for _, day, night in pairs
        for paint in ("fill", "stroke")
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" font-family="sans-serif" font-size="12">\n'
        f"<style>@media (prefers-color-scheme: dark) {{ {dark}}}</style>\n"
        f'<rect width="100%" height="100%" fill="{light["--chart-paper"]}"/>\n'
        f"{plain}\n</svg>\n"
    )


def chart_colours() -> str:
    """Return the CSS rule with the charts' colours in light and dark mode."""
    css = (STATIC / "charts.css").read_text(encoding="utf-8")
    return css[css.index(":root") : css.index("}") + 1]


def axis_top(value: float) -> float:
    """Return the upper end of an axis that starts at 0: the first tick at or above a value."""
    if not (math.isfinite(value) and value > 0):
        return 1.0
    step = _tick_spacing(value)
    return math.ceil(value / step - 1e-9) * step


def ticks(top: float) -> list[float]:
    """Return evenly spaced ticks for an axis from 0 to ``top``."""
    step = _tick_spacing(top)
    return [i * step for i in range(math.floor(top / step + 1e-9) + 1)]


def _tick_spacing(span: float) -> float:
    """Return the smallest round-number tick spacing that covers a span in at most 5 steps."""
    power = 10.0 ** math.floor(math.log10(span / 5))
    return next(f * power for f in (1, 2, 2.5, 5, 10) if f * power * 5 >= span * (1 - 1e-9))


def _draw_legend(lines: Sequence[Line], width: float) -> tuple[list[str], float]:
    """Return the legend's SVG elements and the vertical position at which the plot starts."""
    parts, x, y = list[str](), 4.0, 14.0
    for style, line in enumerate(lines):
        name = make_visible(line.label).replace("\n", " ")
        name = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
        if x > 4 and x + 36 + _LETTER * len(name) > width:
            x, y = 4.0, y + _ROW
        parts += [_path_element(f"M{x:g} {y - 4:g}h26", style), _text_element(name, x + 32, y)]
        x += 50 + _LETTER * len(name)
    return parts, y + 34


def _draw_line(
    line: Line,
    style: int,
    x: Callable[[float], float],
    y: Callable[[float], float],
    write: Callable[[float], str],
) -> Iterator[str]:
    colour = f"var(--chart-{style % 6}, {COLOURS[style % 6]})"
    for run in _split_at_gaps(line.points, lambda p: all(map(math.isfinite, p))):
        if len(run) > 1:
            upper = [f"{x(p.x):.1f} {y(p.high):.1f}" for p in run]
            lower = [f"{x(p.x):.1f} {y(p.low):.1f}" for p in reversed(run)]
            path = "L".join(upper + lower)
            yield f'<path d="M{path}Z" fill="{colour}" fill-opacity="0.14"/>'
    for run in _split_at_gaps(line.points, lambda p: math.isfinite(p.x) and math.isfinite(p.y)):
        if len(run) > 1:
            yield _path_element("M" + "L".join(f"{x(p.x):.1f} {y(p.y):.1f}" for p in run), style)
        for p in run if len(line.points) <= _LONGEST else run[:: max(1, len(run) - 1)]:
            note = f"{line.label}, {p.x:,.0f}: {write(p.y)}"
            if math.isfinite(p.low) and math.isfinite(p.high):
                note += f" ({write(p.low)} to {write(p.high)})"
            yield (
                f'<circle cx="{x(p.x):.1f}" cy="{y(p.y):.1f}" r="3.4" fill="{colour}">'
                f"<title>{_escape(note)}</title></circle>"
            )


def _split_at_gaps(
    points: Sequence[Point], known: Callable[[Point], bool]
) -> Iterator[list[Point]]:
    """Yield each unbroken segment of points for which ``known`` is true."""
    run = list[Point]()
    for point in points:
        if known(point):
            run.append(point)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _path_element(d: str, style: int) -> str:
    dash = DASHES[style % 6]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    colour = f"var(--chart-{style % 6}, {COLOURS[style % 6]})"
    return f'<path d="{d}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>'


def _text_element(
    text: str, x: float, y: float, *, anchor: str = "start", soft: bool = False, bold: bool = False
) -> str:
    colour = "var(--chart-soft, #59636e)" if soft else "var(--chart-ink, #1c2126)"
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>'
        f"{_escape(text)}</text>"
    )


def _escape(text: str) -> str:
    return escape(make_visible(text).replace("\n", " "))


def _finite_values(values: Iterator[float] | Sequence[float]) -> Iterator[float]:
    return (value for value in values if math.isfinite(value))
