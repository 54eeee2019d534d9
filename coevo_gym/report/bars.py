"""Bar charts: stacked columns in panels, grouped columns, rows with numbers, and whiskers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coevo_gym.report.svg import (
    Element,
    Scale,
    drawing,
    el,
    marker,
    nice_ticks,
    number,
    shorten,
    text_width,
)
from coevo_gym.report.words import count

LEFT = 46.0
"""Space for the numbers of the vertical axis, in pixels."""


@dataclass(frozen=True)
class Fill:
    """The style of a kind of bar: a colour and a hatch, each of which identifies it.

    Attributes:
        label: name in the legend.
        css: CSS class of the colour.
        hatch: 0 for none, 1 for diagonal lines, 2 for dots, 3 for horizontal lines.
    """

    label: str
    css: str
    hatch: int = 0


@dataclass(frozen=True)
class Column:
    """One column of a chart.

    Attributes:
        label: label below the column, or "".
        values: one value per fill, in order.
    """

    label: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class ColumnPanel:
    """A titled panel of columns."""

    title: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class ColumnChart:
    """Panels of columns, one below the other, with the same vertical scale.

    Attributes:
        id: id, unique within the page.
        title: title of the chart.
        description: description of the chart, in one sentence.
        fills: styles of the bars.
        panels: panels from top to bottom.
        stacked: True to stack the bars of a column; otherwise they are side by side.
        x_label: label of the horizontal axis.
        y_label: label of the vertical axis.
        top: end of the vertical axis.
        write: formats a value.
        last: label at the right end; if given, column labels mark the left edges of columns.
        whole: True if the vertical axis shows counts.
        height: height of each plot area, in pixels.
    """

    id: str
    title: str
    description: str
    fills: tuple[Fill, ...]
    panels: tuple[ColumnPanel, ...]
    stacked: bool
    x_label: str
    y_label: str
    top: float
    write: Callable[[float], str]
    last: str = ""
    whole: bool = True
    height: float = 150

    @property
    def empty(self) -> bool:
        """True if no bar has a height."""
        values = [v for p in self.panels for c in p.columns for v in c.values]
        return not any(math.isfinite(v) and v > 0 for v in values)


def draw_columns(chart: ColumnChart, width: float) -> Element:
    """Draw a column chart ``width`` pixels wide; the panels determine its height."""
    parts = [_hatches(chart.id)]
    rows, y = _legend(chart.fills, chart.id, width)
    parts += rows
    for panel in chart.panels:
        top = y + 24
        scale = Scale(0, chart.top, top + chart.height, top)
        x = Scale(0, max(len(panel.columns), 1), LEFT, width - 12)
        parts += _axes(chart, panel, x, scale)
        for i, column in enumerate(panel.columns):
            parts += _bars(chart, panel, i, column, x, scale)
        y = top + chart.height + 20
    middle = (LEFT + width - 12) / 2
    parts.append(
        el("text", chart.x_label, class_="axis-label", x=middle, y=y + 14, text_anchor="middle")
    )
    return drawing(chart.id, chart.title, chart.description, (width, y + 22), parts)


def _hatches(id: str) -> Element:
    def pattern(n: int, *shapes: Element, turn: str | None = None) -> Element:
        return el("pattern", *shapes, id=f"{id}-hatch{n}", width=6, height=6,
                  patternUnits="userSpaceOnUse", patternTransform=turn)  # fmt: skip

    return el(
        "defs",
        pattern(1, el("line", class_="hatch", x1=0, y1=0, x2=0, y2=6), turn="rotate(45)"),
        pattern(2, el("circle", class_="hatch-dot", cx=3, cy=3, r=1.3)),
        pattern(3, el("line", class_="hatch", x1=0, y1=3, x2=6, y2=3)),
    )


def _block(fill: Fill, id: str, box: tuple[float, float, float, float], note: str) -> list[Element]:
    x, y, width, height = box
    shape = {"x": x, "y": y, "width": width, "height": height}
    inner = (el("title", note),) if note else ()
    parts = [el("rect", *inner, class_=f"bar {fill.css}", **shape)]
    if fill.hatch:
        parts.append(el("rect", class_="over", fill=f"url(#{id}-hatch{fill.hatch})", **shape))
    return parts


def _legend(fills: Sequence[Fill], id: str, width: float) -> tuple[list[Element], float]:
    parts: list[Element] = []
    x, y = 4.0, 4.0
    for fill in fills:
        text = shorten(fill.label, width - 40)
        if x > 4 and x + 22 + text_width(text) > width:
            x, y = 4.0, y + 19
        parts += _block(fill, id, (x, y, 14, 12), "")
        parts.append(el("text", text, class_="name", x=x + 20, y=y + 10.5))
        x += 38 + text_width(text)
    return parts, y + 22


def _axes(chart: ColumnChart, panel: ColumnPanel, x: Scale, y: Scale) -> list[Element]:
    title = shorten(panel.title, x.end - LEFT - text_width(chart.y_label) - 10)
    parts = [
        el("text", chart.y_label, class_="axis-label", x=2, y=y.end - 9),
        el("text", title, class_="name bold", x=x.end, y=y.end - 9, text_anchor="end"),
    ]
    for value in nice_ticks(chart.top, 4, whole=chart.whole):
        at, css = y.at(value), "base" if value == 0 else "grid"
        parts.append(el("line", class_=css, x1=x.start, x2=x.end, y1=at, y2=at))
        parts.append(
            el("text", chart.write(value), class_="tick", x=LEFT - 7, y=at + 4, text_anchor="end")
        )
    slot = (x.end - x.start) / max(len(panel.columns), 1)
    widest = max((text_width(c.label, 11) for c in panel.columns), default=0.0) + 6
    every = max(1, math.ceil(widest / slot))
    for i, column in enumerate(panel.columns):
        if i % every == 0 and column.label:
            parts.append(_below(column.label, x.at(i if chart.last else i + 0.5), y))
    if chart.last:
        parts.append(_below(chart.last, x.end, y))
    return parts


def _below(label: str, x: float, y: Scale) -> Element:
    return el("text", label, class_="tick", x=x, y=y.start + 14, text_anchor="middle")


def _bars(
    chart: ColumnChart, panel: ColumnPanel, i: int, column: Column, x: Scale, y: Scale
) -> list[Element]:
    slot = x.at(i + 1) - x.at(i)
    gap = min(slot * 0.22, 14)
    wide = min(slot - gap, 46 * (1 if chart.stacked else len(chart.fills)))
    start, base, parts = x.at(i) + (slot - wide) / 2, 0.0, []
    each = wide if chart.stacked else wide / len(chart.fills)
    for k, (fill, value) in enumerate(zip(chart.fills, column.values, strict=True)):
        if not (math.isfinite(value) and value > 0):
            continue
        low = base if chart.stacked else 0.0
        left = start if chart.stacked else start + k * each
        top = y.at(low + value)
        box = (left, top, max(each - (0 if chart.stacked else 1), 0.6), y.at(low) - top)
        where = " ".join(part for part in (panel.title, column.label) if part)
        parts += _block(fill, chart.id, box, f"{where}: {fill.label} {chart.write(value)}")
        base += value
    return parts


@dataclass(frozen=True)
class Row:
    """A named group of horizontal bars, with one value per fill."""

    label: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class RowChart:
    """Horizontal bars with numbers at their ends; the legend appears for more than one fill."""

    id: str
    title: str
    description: str
    fills: tuple[Fill, ...]
    rows: tuple[Row, ...]


def draw_rows(chart: RowChart, width: float) -> Element:
    """Draw a row chart ``width`` pixels wide; the rows determine its height."""
    parts, y = [_hatches(chart.id)], 4.0
    if len(chart.fills) > 1:
        rows, y = _legend(chart.fills, chart.id, width)
        parts += rows
        y += 2
    room = min(max((text_width(row.label) for row in chart.rows), default=0) + 12, width * 0.4)
    most = max((v for row in chart.rows for v in row.values if math.isfinite(v)), default=0.0)
    scale = Scale(0, most, room, width - text_width(count(most)) - 14)
    start, thick = y, 16 if len(chart.fills) == 1 else 12
    for row in chart.rows:
        middle = y + thick * len(chart.fills) / 2
        name = shorten(row.label, room - 10)
        parts.append(
            el("text", el("title", row.label), name, class_="name", x=room - 8, y=middle + 4,
               text_anchor="end")
        )  # fmt: skip
        for fill, value in zip(chart.fills, row.values, strict=True):
            box = (room, y, scale.at(value) - room, thick - 2.0)
            parts += _block(fill, chart.id, box, f"{row.label}, {fill.label}: {count(value)}")
            end = scale.at(value) + 5
            parts.append(el("text", count(value), class_="tick", x=end, y=y + thick - 5))
            y += thick
        y += 9
    parts.append(el("line", class_="base", x1=room, x2=room, y1=start - 4, y2=y - 4))
    return drawing(chart.id, chart.title, chart.description, (width, y + 2), parts)


def whisker_axis() -> Element:
    """Draw the axis from 0 to 100 % above the bars of :func:`whisker`."""
    places = (("0%", "0"), ("50%", "50"), ("100%", "100\u202f%"))
    texts = [el("text", text, class_="tick", x=x, y=14, text_anchor="middle") for x, text in places]
    return el("svg", *texts, class_="chart cell", width="100%", height=18, aria_hidden="true")


def whisker(success: float, low: float, high: float, style: int | None) -> Element:
    """Draw a mark with its interval on a bar from 0 to 100 %, as wide as its table cell.

    Args:
        success: share in [0, 1]; NaN draws an empty bar.
        low: lower end of the interval, or NaN.
        high: upper end of the interval, or NaN.
        style: number of the arm's style; None for grey.
    """

    def at(share: float) -> str:
        return f"{number(100 * min(max(share, 0.0), 1.0))}%"

    css = f"s{style % 6}" if style is not None else "plain"
    parts = [
        el("line", class_="grid", x1=at(share), x2=at(share), y1=3, y2=19)
        for share in (0, 0.25, 0.5, 0.75, 1)
    ]
    parts.append(el("line", class_="base", x1="0%", x2="100%", y1=11, y2=11))
    if math.isfinite(low) and math.isfinite(high):
        parts.append(el("line", class_=f"interval {css}", x1=at(low), x2=at(high), y1=11, y2=11))
        parts += [
            el("line", class_=f"whisker {css}", x1=at(end), x2=at(end), y1=6, y2=16)
            for end in (low, high)
        ]
    if math.isfinite(success):
        mark = marker(style or 0, 0, 0, size=4.5)
        place = el("svg", el("g", mark, class_=css), x=at(success), y=11, overflow="visible")
        parts.append(place)
    return el("svg", *parts, class_="cell", width="100%", height=22, aria_hidden="true")
