"""The small chart of pages without JavaScript."""

from __future__ import annotations

import math
import re
import xml.dom.minidom

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.view.export.curve import (
    COLOURS,
    Line,
    Point,
    axis_top,
    chart_colours,
    draw_chart,
    ticks,
    to_svg_file,
)

HOSTILE = '<script>alert("x")</script>\'"> & &amp; \x00\x1b[31m \u202e \ud800 \n'


def draw_valid(*lines: Line) -> str:
    svg = draw_chart(lines, "Success", "env steps", "success")
    xml.dom.minidom.parseString(svg.encode())
    return svg


def line(*values: float, label: str = "A") -> Line:
    return Line(label, [Point(1000 * i, value) for i, value in enumerate(values)])


def paths(svg: str) -> list[list[tuple[float, float]]]:
    """Points of the lines, without those of the legend."""
    matches = re.findall(r'<path d="M([^"Zh]*)" fill="none"', svg)
    return [[tuple(map(float, at.split())) for at in path.split("L")] for path in matches]  # type: ignore[misc]


def test_a_success_of_one_half_is_drawn_in_the_middle_of_the_axis() -> None:
    svg = draw_valid(line(0.0, 0.5, 1.0))
    (((x0, y0), (x1, y1), (x2, y2)),) = paths(svg)
    assert y1 == pytest.approx((y0 + y2) / 2, abs=0.1)
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    grid = [float(y) for y in re.findall(r'<line [^>]*y1="([^"]*)"', svg)]
    assert (max(grid), min(grid)) == (y0, y2)


def test_bands_cover_the_intervals() -> None:
    svg = draw_valid(Line("A", [Point(0, 0.5, 0.4, 0.6), Point(10, 0.5, 0.4, 0.6)]))
    band = re.search(r'd="M\S+ (\S+)L\S+ (\S+)L\S+ (\S+)L\S+ (\S+)Z"', svg)
    mark = re.search(r'cy="([^"]*)"', svg)
    assert band
    assert mark
    high, high2, low, low2 = map(float, band.groups())
    assert (high, low) == (high2, low2)
    assert (high + low) / 2 == pytest.approx(float(mark[1]), abs=0.1)
    assert "A, 10: 50\u202f% (40\u202f% to 60\u202f%)" in svg


def test_a_gap_in_a_line_is_not_bridged() -> None:
    assert [len(path) for path in paths(draw_valid(line(0.1, 0.2, math.nan, 0.3, 0.4)))] == [2, 2]
    assert "<circle" in draw_valid(line(0.3))


@pytest.mark.parametrize("values", [(math.nan,), (0.0,), (math.inf, 0.2), (0.0, 0.0)], ids=str)
def test_nan_and_infinite_values_do_not_appear_in_the_svg(values: tuple[float, ...]) -> None:
    assert not re.search(r'"[^"]*\b(nan|inf)\b', draw_valid(line(*values), Line("none", [])))


def test_lines_differ_by_colour_and_pattern() -> None:
    svg = draw_valid(*(line(0.1, 0.2, label=f"arm {i}") for i in range(6)))
    looks = re.findall(
        r'<path d="M[^"]*h26"[^>]*stroke="([^"]*)"[^>]*?(?:dasharray="(.*?)")?/>', svg
    )
    assert len(set(looks)) == len(looks) == 6
    assert len({colour for colour, _ in looks}) == 6


def test_hostile_names_are_shown_as_text() -> None:
    svg = draw_valid(line(0.1, 0.2, label=HOSTILE))
    assert "<script>" not in svg
    assert "\x1b" not in svg
    assert "&lt;script&gt;" in svg


def test_a_picture_is_a_self_contained_svg_with_plain_colours() -> None:
    svg = draw_chart([line(0.1, 0.2, label=f"arm {i}") for i in range(6)], "t", "x", "y")
    image = to_svg_file(svg, 760, 300)
    root = xml.dom.minidom.parseString(image.encode()).documentElement
    assert root.getAttribute("xmlns") == "http://www.w3.org/2000/svg"
    assert "var(" not in image
    assert "light-dark(" not in image
    assert all(f'stroke="{colour}"' in image for colour in COLOURS)


def test_colours_are_those_of_the_style_sheet() -> None:
    light = re.findall(r"--chart-\d: light-dark\((#\w+),", chart_colours())
    assert tuple(light) == COLOURS


@given(st.floats(1e-6, 1e12))
def test_axes_end_at_a_round_number_above_the_values(value: float) -> None:
    top = axis_top(value)
    marks = ticks(top)
    assert value <= top * (1 + 1e-6)
    assert top <= 2.5 * value * (1 + 1e-6)
    assert marks[0] == 0
    assert marks[-1] == pytest.approx(top)
    assert 2 <= len(marks) <= 6
