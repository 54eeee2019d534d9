"""What a report says about its numbers."""

from __future__ import annotations

import math

import pytest

from coevo_gym.report.data import ReportData, RoundRow
from coevo_gym.report.words import (
    compact,
    count,
    flatten,
    headline,
    interval,
    percent,
    plural,
    rounds_sentence,
    signals_sentence,
    spread,
)
from coevo_gym.run.table import TableRow

NAN = math.nan


def plain(text: str) -> str:
    return text.replace("\u202f", " ")


def test_numbers_and_missing_numbers() -> None:
    assert plain(percent(0.5)) == "50.0 %"
    assert plain(interval(0.461, 0.579)) == "46.1–57.9 %"
    assert percent(NAN) == percent(None) == count(math.inf) == interval(0.1, NAN) == "–"
    assert (count(12345.6), plural(1, "task"), plural(0, "task")) == ("12,346", "1 task", "0 tasks")
    assert [compact(v) for v in (0, 500, 2500, 1.5e6)] == ["0", "500", "2.5k", "1.5M"]


def test_headline_without_numbers() -> None:
    assert headline(()) == "This run holds no evaluation on held-out tasks."
    assert headline((TableRow("a", NAN),)) == headline(())


def test_headline_of_one_arm() -> None:
    row = TableRow("CoEvolve", 0.5, 0.4, 0.6, n_tasks=1)
    assert plain(headline([row])) == (
        "CoEvolve solves 50.0 % of 1 held-out task (95 % interval 40.0–60.0 %), "
        "with one seed; repeats can differ by more."
    )


@pytest.mark.parametrize(
    ("success", "low", "high", "said"),
    [
        (0.70, 0.65, 0.75, "20.0 points more than RIVAL; the intervals do not overlap."),
        (0.52, 0.47, 0.57, "2.0 points more than RIVAL; the intervals overlap."),
        (0.40, 0.36, 0.44, "10.0 points fewer than RIVAL; the intervals do not overlap."),
        (0.50, NAN, NAN, "as many as RIVAL."),
    ],
)  # fmt: skip
def test_headline_names_the_strongest_trained_rival(
    success: float, low: float, high: float, said: str
) -> None:
    table = (
        TableRow("expert", 1.0, 0.99, 1.0),
        TableRow("blind", 0.45, 0.4, 0.5, env_steps=9),
        TableRow("static", 0.5, 0.45, 0.55, env_steps=9),
        TableRow("CoEvolve", success, low, high, n_tasks=300, env_steps=9),
    )
    said = said.replace("RIVAL", "static (50.0 %, 45.0–55.0 %)").removesuffix(".")
    text = plain(headline(table))
    assert text.endswith(f"{said} (one seed; repeats can differ by more).")


def test_rounds_are_summed_by_arm_and_no_drafts_give_no_rate() -> None:
    rows = (
        RoundRow("A", "round-0", 1, drafts=10, accepted=3, pool_size=13),
        RoundRow("B", "round-0", 1, pool_size=10),
        RoundRow("A", "round-1", 2, drafts=10, accepted=2, pool_size=15),
    )
    assert math.isnan(rows[1].pass_rate)
    assert rows[0].pass_rate == 0.3
    assert plain(rounds_sentence(rows)) == (
        "A: 2 rounds, 20 drafts, 5 accepted (25.0 %), 15 in the pool at the end. "
        "B: 1 round, 0 drafts, 0 accepted (–), 10 in the pool at the end."
    )


def test_forgetting_is_told_by_both_readings() -> None:
    signals = {"forgetting": 3, "boundary": 5, "rare": 1}
    rows = [
        RoundRow("A", f"round-{i}", i, signals, forgetting={"max": 3, "mean": 1}) for i in (1, 2)
    ]
    assert plain(signals_sentence(ReportData("t", rounds=tuple(rows)))) == (
        "In all: 6 forgetting, 10 boundary, 2 rare. Forgetting is 33.3 % of them where it reads "
        "single outcomes of earlier visits, as the paper's text does, and 14.3 % where it reads "
        "their means."
    )
    older = ReportData("t", rounds=(RoundRow("A", "round-1", 1, signals),))
    assert plain(signals_sentence(older)) == "In all: 3 forgetting, 5 boundary, 1 rare."


def test_manifest_is_flattened_in_order() -> None:
    value = {"b": {"x": 1, "y": {"z": "text"}}, "a": [1, "é"], "none": None, "empty": {}}
    assert list(flatten(value)) == [
        ("b.x", "1"), ("b.y.z", "text"), ("a", '[1, "é"]'), ("none", "null"), ("empty", "{}"),
    ]  # fmt: skip
    assert list(flatten(object)) == [("", "\"<class 'object'>\"")]


@pytest.mark.parametrize(("n", "most"), [(0, 5), (5, 5), (500, 80), (81, 80)])
def test_an_even_sample_keeps_both_ends(n: int, most: int) -> None:
    picked = spread(n, most)
    assert len(picked) == len(set(picked)) == min(n, most)
    if n:
        assert (picked[0], picked[-1]) == (0, n - 1)
