"""Parts of the drawings: escaping, scales, ticks, labels."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.report.svg import (
    MAX_TEXT,
    Scale,
    clean,
    el,
    keep_apart,
    line_path,
    nice_ticks,
    nice_top,
    number,
    shorten,
    text_width,
)


def test_text_and_attributes_are_escaped() -> None:
    drawn = str(el("text", "<b> & 'c'", id='a"b', stroke_width=1.50, fill=None))
    assert drawn == '<text id="a&quot;b" stroke-width="1.5">&lt;b&gt; &amp; \'c\'</text>'


def test_a_long_path_is_never_cut() -> None:
    path = line_path([(i, i) for i in range(2000)])
    assert len(path) > MAX_TEXT
    assert f'd="{path}"' in str(el("path", d=path))


@given(st.text(st.characters(), max_size=60))
def test_clean_text_can_be_stored_and_changes_no_more(text: str) -> None:
    once = clean(text)
    once.encode()
    assert clean(once) == once
    assert "\x00" not in once


def test_clean_drops_surrogates_control_and_reordering_marks_and_says_what_it_cut() -> None:
    assert clean("a\x00b\ud800c\u202ed\r\ne") == "a\ufffdb\ufffdc\ufffdd\ne"
    assert clean("שלום 😀") == "שלום 😀"
    assert clean("x" * 2500).endswith("x… (500 more characters)")


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (0.1 + 0.2, "0.3"), (-0.001, "0"), (12.345, "12.35"), (100, "100")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_scale_maps_and_stays_within_its_ends() -> None:
    scale = Scale(0, 1, 200, 0)
    assert [scale.at(v) for v in (0, 0.5, 1, 2, -1)] == [200, 100, 0, 0, 200]
    assert Scale(3, 3, 10, 90).at(3) == 10


def test_ticks_are_round_and_end_at_the_top() -> None:
    assert nice_ticks(1.0) == (0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0)
    assert nice_ticks(3, 4, whole=True) == (0, 1, 2, 3)
    assert nice_ticks(0) == nice_ticks(math.nan) == (0.0,)
    assert nice_top(47, 4, whole=True) == 60
    assert nice_top(0) == nice_top(math.nan) == 1


@given(st.floats(1e-6, 1e12), st.integers(2, 8), st.booleans())
def test_every_axis_holds_its_values_and_few_ticks(value: float, n: int, whole: bool) -> None:
    top = nice_top(value, n, whole=whole)
    ticks = nice_ticks(top, n, whole=whole)
    assert top >= value * (1 - 1e-6)
    assert 2 <= len(ticks) <= n + 2
    assert ticks[-1] <= top * (1 + 1e-6)


@given(st.lists(st.floats(0, 100), max_size=12))
def test_labels_keep_apart_in_order_within_bounds(wanted: list[float]) -> None:
    placed = keep_apart(wanted, 15, 0, 100)
    gap = min(15, 100 / max(len(wanted) - 1, 1))
    places = sorted(placed)
    assert all(b - a >= gap - 1e-6 for a, b in itertools.pairwise(places))
    assert all(-1e-6 <= place <= 100 + 1e-6 for place in placed)
    assert [placed[i] for i in sorted(range(len(wanted)), key=lambda i: (wanted[i], i))] == places


def test_labels_with_room_stay_where_they_are() -> None:
    assert keep_apart([80, 20], 15, 0, 100) == [80, 20]


def test_a_gap_breaks_a_path() -> None:
    assert line_path([(0, 1), (1, 2), (2, math.nan), (3, 4)]) == "M0 1L1 2M3 4"


def test_long_labels_are_cut_to_fit() -> None:
    label = shorten("word " * 50, 100)
    assert label.endswith("…")
    assert text_width(label) <= 100
    assert shorten("short", 100) == "short"
