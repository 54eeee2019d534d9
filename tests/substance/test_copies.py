"""A draft that repeats a known task in other words that mean nothing is a copy."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.evolution import Draft
from coevo_gym.curricula.gates.gates import GateResult, default_gates, run_gates
from tests.quick import slow_for

BENCH = Path(__file__).parents[2] / "bench"
N = 3


def articles(text: str) -> str:
    """The text with its articles exchanged."""
    return re.sub(r"\b(a|an|the)\b", lambda m: "a" if m[0] == "the" else "the", text)


def reordered(text: str) -> str:
    """The text with its second half first."""
    words = text.split()
    return " ".join(words[len(words) // 2 :] + words[: len(words) // 2])


COPIES: dict[str, Callable[[str], str]] = {
    "articles": articles,
    "please": lambda text: f"{text} Please, please.",
    "reordered": reordered,
    "shouted": str.upper,
}


def judged_again(known: Draft, change: Callable[[str], str]) -> GateResult:
    """Judge a draft with changed words where the task of the same draft is known."""
    benchmark = get_benchmark(known.benchmark)
    first = run_gates(default_gates(benchmark), known)
    assert first.task is not None, first.verdict.reason
    again = known.model_copy(update={"instruction": change(known.instruction)})
    return run_gates(default_gates(benchmark, [first.task]), again)


@pytest.mark.parametrize("name", slow_for(("webshop", "bfcl", "alfworld", "appworld"), "appworld"))
def test_a_known_task_in_other_words_is_rejected_as_a_near_duplicate(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if name == "appworld":
        request.getfixturevalue("appworld_root")
    monkeypatch.syspath_prepend(BENCH)
    from honest_drafts import judge_drafts

    for one in judge_drafts(name, N):
        if one.lost:
            continue
        for how, change in COPIES.items():
            result = judged_again(one.draft, change)
            assert result.verdict.gate == "near_duplicate", (how, one.draft.instruction)
        other = judged_again(one.draft, lambda text: f"{text} Do it for Tom.")
        assert other.verdict.gate != "near_duplicate"
