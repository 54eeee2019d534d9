"""Maps of tasks: points in panels, coloured by round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from coevo_gym.report.charts import NARROW_BELOW
from coevo_gym.report.data import ArmMap, Place
from coevo_gym.report.svg import Element, Scale, drawing, el, marker, shorten, text_width

GROUPS = 5
"""Maximum number of groups of rounds with their own colour and mark."""

_MARKS = (0, 1, 2, 3, 4)
_FIRST = 5
_GAP = 14.0
_EDGE = 8.0
_HIGHEST = 520.0


@dataclass(frozen=True)
class MapChart:
    """Panels with one map per arm, all on the same plane.

    Attributes:
        id: id, unique within the page.
        title: title of the chart.
        description: description of the chart, in one sentence.
        maps: map of each panel.
        notes: True to show tooltips with the tasks' instructions.
    """

    id: str
    title: str
    description: str
    maps: tuple[ArmMap, ...]
    notes: bool = True

    @property
    def empty(self) -> bool:
        """True if no task has a position."""
        return not any(_drawn(arm.tasks) for arm in self.maps)


class _Group(NamedTuple):
    """Rounds that share a style."""

    first: int
    last: int

    @property
    def label(self) -> str:
        if self.first == self.last:
            return f"round {self.first}"
        return f"rounds {self.first}–{self.last}"


def draw_map(chart: MapChart, width: float) -> Element:
    """Draw a map ``width`` pixels wide, with the same scale on both axes."""
    groups = _groups(max((p.round for arm in chart.maps for p in arm.tasks), default=0))
    parts, y = _legend(chart, groups, width)
    n = 2 if width >= NARROW_BELOW and len(chart.maps) > 1 else 1
    wide = (width - _GAP * (n - 1) - 2) / n
    frame = _frame(chart.maps, wide)
    for i, arm in enumerate(chart.maps):
        if i and i % n == 0:
            y += frame.height + 26
        parts += _panel(arm, groups, (1 + (i % n) * (wide + _GAP), y + 22), frame, chart.notes)
    return drawing(chart.id, chart.title, chart.description, (width, y + frame.height + 24), parts)


class _Frame(NamedTuple):
    """The visible part of the plane, and its size in pixels."""

    x: Scale
    y: Scale
    width: float
    height: float


def _frame(maps: Sequence[ArmMap], width: float) -> _Frame:
    points = [p for arm in maps for p in _drawn((*arm.held_out, *arm.tasks))]
    left, right = min(p.x for p in points), max(p.x for p in points)
    low, high = min(p.y for p in points), max(p.y for p in points)
    inner, most = width - 2 * _EDGE, min(width, _HIGHEST) - 2 * _EDGE
    unit = max((right - left) / inner, (high - low) / most, 1e-9)
    height = max((high - low) / unit, 0.4 * width) + 2 * _EDGE
    middle, centre = (left + right) / 2, (low + high) / 2
    half, upwards = unit * inner / 2, unit * (height - 2 * _EDGE) / 2
    return _Frame(
        Scale(middle - half, middle + half, _EDGE, width - _EDGE),
        Scale(centre - upwards, centre + upwards, height - _EDGE, _EDGE),
        width,
        height,
    )


def _panel(
    arm: ArmMap, groups: Sequence[_Group], corner: tuple[float, float], frame: _Frame, notes: bool
) -> list[Element]:
    left, top = corner
    title = shorten(arm.arm, 0.9 * frame.width)
    parts = [
        el("text", title, class_="name bold", x=left, y=top - 7),
        el("rect", class_="frame", x=left, y=top, width=frame.width, height=frame.height),
    ]
    for place in _drawn(arm.held_out):
        x, y = left + frame.x.at(place.x), top + frame.y.at(place.y)
        parts.append(el("circle", class_="held-out", cx=x, cy=y, r=2.2))
    for place in _drawn(arm.tasks):
        x, y = left + frame.x.at(place.x), top + frame.y.at(place.y)
        where = f"round {place.round}" if place.round else "D_0"
        note = f"{where}: {shorten(place.about, 500)}" if notes and place.about else ""
        parts.append(_mark(_group_of(place.round, groups), x, y, note))
    return parts


def _mark(group: int | None, x: float, y: float, note: str = "") -> Element:
    if group is None:
        return marker(_FIRST, x, y, note, 3.2, css="mark ring plain")
    ring = " ring" if _MARKS[group] == 4 else ""
    return marker(_MARKS[group], x, y, note, 3.4, css=f"mark{ring} r{group}")


def _legend(chart: MapChart, groups: Sequence[_Group], width: float) -> tuple[list[Element], float]:
    parts: list[Element] = []
    x, y = 4.0, 10.0
    entries: list[tuple[str, int | None]] = [("held-out", -1)] if _any_held_out(chart) else []
    entries += [("D_0", None), *((group.label, i) for i, group in enumerate(groups))]
    for label, group in entries:
        if x > 4 and x + 18 + text_width(label) > width:
            x, y = 4.0, y + 19
        if group == -1:
            parts.append(el("circle", class_="held-out", cx=x + 5, cy=y, r=2.6))
        else:
            parts.append(_mark(group, x + 5, y))
        parts.append(el("text", label, class_="name", x=x + 14, y=y + 4))
        x += 30 + text_width(label)
    return parts, y + 12


def _any_held_out(chart: MapChart) -> bool:
    return any(arm.held_out for arm in chart.maps)


def _groups(rounds: int) -> list[_Group]:
    """Divide all rounds into at most :data:`GROUPS` groups of about equal size, in order."""
    n = min(rounds, GROUPS)
    ends = [round(rounds * i / n) for i in range(n + 1)] if n else []
    return [_Group(a + 1, b) for a, b in pairwise(ends)]


def _group_of(number: int, groups: Sequence[_Group]) -> int | None:
    """Return the group of a round; None for the first task set."""
    return next((i for i, group in enumerate(groups) if group.first <= number <= group.last), None)


def _drawn(places: Sequence[Place]) -> list[Place]:
    return [place for place in places if math.isfinite(place.x) and math.isfinite(place.y)]
