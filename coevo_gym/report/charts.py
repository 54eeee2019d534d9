"""Line charts over a shared axis, with bands, direct labels and ticks for rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coevo_gym.report.data import CurvePoint
from coevo_gym.report.svg import (
    DASHES,
    Element,
    Scale,
    drawing,
    el,
    keep_apart,
    line_path,
    marker,
    nice_ticks,
    number,
    shorten,
    text_width,
)
from coevo_gym.report.words import compact

LEFT = 46.0
"""Space for the numbers of the vertical axis, in pixels."""

NARROW_BELOW = 500
"""Width in pixels below which curves are named in a legend instead of at their ends."""

LANE = 9.0
"""Height of one lane of round ticks, in pixels."""


@dataclass(frozen=True)
class Series:
    """One line of a panel.

    Attributes:
        label: name of the line, or "".
        style: number of the colour, pattern and mark.
        points: points in order; ``success`` is the vertical value, regardless of its meaning.
        steps: True if the value is constant until the next point.
        bold: True to highlight the line.
        marks: True to draw a mark at each point.
    """

    label: str
    style: int
    points: tuple[CurvePoint, ...]
    steps: bool = False
    bold: bool = False
    marks: bool = True

    @property
    def drawn(self) -> tuple[CurvePoint, ...]:
        """Points with finite coordinates."""
        return tuple(
            p for p in self.points if math.isfinite(p.env_steps) and math.isfinite(p.success)
        )


@dataclass(frozen=True)
class Lines:
    """A panel of lines over the chart's horizontal axis.

    Attributes:
        series: lines, back to front.
        label: label of the vertical axis.
        top: end of the vertical axis, which starts at 0.
        ticks: ticks of the vertical axis.
        write: formats a value, on the axis and in tooltips.
        height: height of the plot area, in pixels.
        named: True to show the names of the lines.
    """

    series: tuple[Series, ...]
    label: str
    top: float
    ticks: tuple[float, ...]
    write: Callable[[float], str]
    height: float = 240
    named: bool = True


@dataclass(frozen=True)
class Rug:
    """Positions on the horizontal axis, drawn as a lane of ticks below it."""

    label: str
    style: int
    at: tuple[float, ...]


@dataclass(frozen=True)
class LineChart:
    """Panels of lines, one below the other, over the same horizontal axis.

    Attributes:
        id: id, unique within the page.
        title: title of the chart.
        description: description of the chart, in one sentence.
        panels: panels from top to bottom.
        x_label: label of the horizontal axis.
        right: end of the horizontal axis, which starts at 0.
        rugs: lanes of ticks below the first panel.
        whole: True if the horizontal axis shows counts.
    """

    id: str
    title: str
    description: str
    panels: tuple[Lines, ...]
    x_label: str
    right: float
    rugs: tuple[Rug, ...] = ()
    whole: bool = True

    @property
    def empty(self) -> bool:
        """True if there is nothing to draw."""
        return not any(series.drawn for panel in self.panels for series in panel.series)


def draw_lines(chart: LineChart, width: float) -> Element:
    """Draw a line chart ``width`` pixels wide; the panels determine its height."""
    named = [s for p in chart.panels if p.named for s in p.series if s.drawn and s.label]
    direct = width >= NARROW_BELOW
    room = max((text_width(s.label) for s in named), default=0.0) + 16 if direct else 12
    x = Scale(0, chart.right, LEFT, width - min(max(room, 16), width / 4))
    parts, y = ([], 4.0) if direct or not named else legend(named, width)
    for i, panel in enumerate(chart.panels):
        top = y + 22
        scale = Scale(0, panel.top, top + panel.height, top)
        parts += _grid(panel, x, scale)
        for series in panel.series:
            parts += _line(series, panel, x, scale)
        if direct and panel.named:
            parts += _direct_labels(panel, x, scale, width)
        y = top + panel.height
        if i == 0 and chart.rugs:
            rugs, y = _rugs(chart.rugs, x, y)
            parts += rugs
        y += 6 if panel is chart.panels[-1] else 14
    axis, y = _bottom(chart, x, y)
    return drawing(chart.id, chart.title, chart.description, (width, y), parts + axis)


def legend(series: Sequence[Series], width: float) -> tuple[list[Element], float]:
    """Draw line names with samples, in rows; return the elements and the height used."""
    parts: list[Element] = []
    x, y = 4.0, 14.0
    for item in {s.label: s for s in series}.values():
        text = shorten(item.label, width - 50)
        if x > 4 and x + 36 + text_width(text) > width:
            x, y = 4.0, y + 19
        dash = DASHES[item.style % len(DASHES)]
        parts += [
            el("path", class_=f"line s{item.style % 6}", d=line_path([(x, y), (x + 26, y)]),
               stroke_dasharray=dash),
            marker(item.style, x + 13, y),
            el("text", text, class_=f"name s{item.style % 6}", x=x + 32, y=y + 4),
        ]  # fmt: skip
        x += 50 + text_width(text)
    return parts, y + 14


def _grid(panel: Lines, x: Scale, y: Scale) -> list[Element]:
    parts = [el("text", panel.label, class_="axis-label", x=2, y=y.end - 9)]
    for value in panel.ticks:
        at = y.at(value)
        css = "base" if value == 0 else "grid"
        parts.append(el("line", class_=css, x1=x.start, x2=x.end, y1=at, y2=at))
        text = panel.write(value)
        parts.append(el("text", text, class_="tick", x=x.start - 7, y=at + 4, text_anchor="end"))
    return parts


def _line(series: Series, panel: Lines, x: Scale, y: Scale) -> list[Element]:
    css = f"s{series.style % 6}"
    parts = _band(series, x, y)
    path = line_path(_corners(series, x, y))
    if path:
        weight = "line bold" if series.bold else "line"
        dash = DASHES[series.style % len(DASHES)]
        parts.append(el("path", class_=f"{weight} {css}", d=path, stroke_dasharray=dash))
    if series.marks or len(series.drawn) == 1:
        size = 4.0 if len(series.drawn) <= 40 else 2.4
        for p in series.drawn:
            note = f"{series.label or panel.label}, {p.env_steps:,.0f}: {panel.write(p.success)}"
            if math.isfinite(p.low) and math.isfinite(p.high):
                note += f" ({panel.write(p.low)} to {panel.write(p.high)})"
            parts.append(marker(series.style, x.at(p.env_steps), y.at(p.success), note, size))
    return parts


def _corners(series: Series, x: Scale, y: Scale) -> list[tuple[float, float]]:
    nan = math.nan
    points = [
        (x.at(p.env_steps), y.at(p.success))
        if math.isfinite(p.env_steps) and math.isfinite(p.success)
        else (nan, nan)
        for p in series.points
    ]
    if not series.steps:
        return points if len(series.drawn) > 1 else []
    corners: list[tuple[float, float]] = []
    for here in [p for p in points if math.isfinite(p[0])]:
        if corners:
            corners.append((here[0], corners[-1][1]))
        corners.append(here)
    return [*corners, (x.end, corners[-1][1])] if corners else []


def _band(series: Series, x: Scale, y: Scale) -> list[Element]:
    """Shade the area between interval ends; a single interval becomes a whisker."""
    runs: list[list[CurvePoint]] = [[]]
    for p in series.points:
        if all(math.isfinite(v) for v in p):
            runs[-1].append(p)
        else:
            runs.append([])
    parts = []
    for run in runs:
        if len(run) == 1:
            at = x.at(run[0].env_steps)
            parts.append(
                el("line", class_=f"whisker s{series.style % 6}", x1=at, x2=at,
                   y1=y.at(run[0].low), y2=y.at(run[0].high))
            )  # fmt: skip
        elif run:
            upper = [(x.at(p.env_steps), y.at(p.high)) for p in run]
            lower = [(x.at(p.env_steps), y.at(p.low)) for p in reversed(run)]
            path = line_path(upper + lower) + "Z"
            parts.append(el("path", class_=f"band s{series.style % 6}", d=path))
    return parts


def _direct_labels(panel: Lines, x: Scale, y: Scale, width: float) -> list[Element]:
    named = [s for s in panel.series if s.drawn and s.label]
    ends = [y.at(s.drawn[-1].success) for s in named]
    places = keep_apart(ends, 15, y.end + 2, y.start - 2)
    parts = []
    for series, end, place in zip(named, ends, places, strict=True):
        css = f"s{series.style % 6}"
        start = x.end if series.steps else x.at(series.drawn[-1].env_steps)
        if abs(place - end) > 3 or x.end - start > 12:
            path = line_path([(start + 6, end), (x.end + 8, place)])
            parts.append(el("path", class_=f"leader {css}", d=path))
        parts.append(
            el("text", el("title", series.label), shorten(series.label, width - x.end - 12),
               class_=f"name {css}{' bold' if series.bold else ''}", x=x.end + 11, y=place + 4)
        )  # fmt: skip
    return parts


def _rugs(rugs: Sequence[Rug], x: Scale, y: float) -> tuple[list[Element], float]:
    parts: list[Element] = []
    for rug in rugs:
        path = "".join(
            f"M{number(x.at(value))} {number(y + 2)}v{number(LANE - 2)}"
            for value in rug.at
            if math.isfinite(value)
        )
        if path:
            note = el("title", f"rounds of {rug.label}")
            parts.append(el("path", note, class_=f"rug s{rug.style % 6}", d=path))
            y += LANE
    return parts, y


def _bottom(chart: LineChart, x: Scale, y: float) -> tuple[list[Element], float]:
    n = 6 if x.end - x.start >= 400 else 4
    parts = [
        el("text", compact(value), class_="tick", x=x.at(value), y=y + 10, text_anchor="middle")
        for value in nice_ticks(chart.right, n, whole=chart.whole)
    ]
    middle = (x.start + x.end) / 2
    parts.append(
        el("text", chart.x_label, class_="axis-label", x=middle, y=y + 28, text_anchor="middle")
    )
    return parts, y + 36
