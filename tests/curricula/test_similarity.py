"""Rounds that keep a third of what they find, by how much it is like native tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Round, RoundResult, Verdict
from coevo_gym.core.task import Task
from coevo_gym.curricula.gates.similarity import (
    Bin,
    BinnedEvolver,
    set_aside,
    similarity_bins,
)
from tests.curricula.episodes import TRAIN

ROUND = Round(id="round-1", budget=9, seed=0)


def task_saying(index: int, instruction: str) -> Task:
    return TRAIN[index].model_copy(update={"instruction": instruction, "name": ""})


AGAINST = [task_saying(0, "press red and blue"), task_saying(1, "press green")]
FOUND = [
    task_saying(2, "press red and blue"),
    task_saying(3, "hold the kettle"),
    task_saying(4, "press red or white"),
]


def result(tasks: list[Task]) -> RoundResult:
    verdicts = [Verdict(draft_id=task.name, accepted=True, task_id=task.id) for task in tasks]
    rejected = Verdict(draft_id="x", accepted=False, gate="build", task_id=tasks[0].id)
    return RoundResult(round_id="round-1", accepted=tuple(tasks), verdicts=(*verdicts, rejected))


def test_similarity_bins_divide_tasks_into_thirds_by_rank() -> None:
    bins = similarity_bins([0.9, 0.1, 0.5, 0.5, 0.3, 0.7, 0.2], 5)
    assert bins._asdict() == {
        "low": [1, 6],
        "mid": [2, 3, 4],
        "high": [0, 5],
        "mixed": [0, 1, 2, 3, 4],
    }
    assert similarity_bins([0.5292, 0.6048, 0.9869, 0.967, 0.8819, 0.7844], 4).mixed == [0, 2, 4, 5]
    assert similarity_bins([], 3) == ([], [], [], [])


@given(st.lists(st.floats(-1, 1), max_size=30), st.integers(0, 40))
def test_every_task_is_in_exactly_one_third(similarity: list[float], n_mixed: int) -> None:
    low, mid, high, mixed = similarity_bins(similarity, n_mixed)
    n = len(similarity)
    assert sorted([*low, *mid, *high]) == list(range(n))
    assert len(low) == len(high) == n // 3
    value = similarity.__getitem__
    assert max(map(value, low), default=-1) <= min(map(value, mid), default=1)
    assert max(map(value, mid), default=-1) <= min(map(value, high), default=1)
    assert len(mixed) == len(set(mixed)) == min(n_mixed, n)
    assert mixed == sorted(mixed)
    assert set(mixed) <= set(range(n))


class Finding:
    def __init__(self, outcome: RoundResult) -> None:
        self.found = outcome

    def run(self, round: Round) -> RoundResult:
        assert round == ROUND
        return self.found


def only_bin(outcome: RoundResult, bin: Bin) -> RoundResult:
    return BinnedEvolver(Finding(outcome), bin, AGAINST).run(ROUND)


@pytest.mark.parametrize(("bin", "places"), [("low", [1]), ("mid", [2]), ("high", [0])])
def test_a_round_keeps_only_tasks_of_the_configured_bin(bin: Bin, places: list[int]) -> None:
    outcome = only_bin(result(FOUND), bin)
    assert list(outcome.accepted) == [FOUND[place] for place in places]
    assert [verdict.accepted for verdict in outcome.verdicts] == [
        *(place in places for place in range(3)),
        False,
    ]
    gates = {verdict.gate for verdict in outcome.verdicts if not verdict.accepted}
    assert gates == {"similarity", "build"}
    assert any(verdict.reason.endswith(f"is not {bin}") for verdict in outcome.verdicts)


def test_the_mixed_bin_is_as_large_as_a_third() -> None:
    assert len(only_bin(result(FOUND), "mixed").accepted) == 1


def test_a_round_without_tasks_is_unchanged() -> None:
    empty = RoundResult(round_id="round-1")
    assert only_bin(empty, "low") is empty


def test_the_same_fifth_of_the_tasks_is_set_aside_each_time() -> None:
    tasks = [*TRAIN, *(task_saying(i, f"press {i}") for i in range(len(TRAIN)))]
    aside, rest = set_aside(tasks)
    assert sorted(task.id for task in [*aside, *rest]) == sorted(task.id for task in tasks)
    assert 0.1 < len(aside) / len(tasks) < 0.3
    assert set_aside(tasks[::-1])[0] == aside[::-1]


def test_a_binned_evolver_without_tasks_to_compare_with_is_refused() -> None:
    with pytest.raises(ConfigError, match="no tasks were set aside"):
        BinnedEvolver(Finding(result(FOUND)), "high", [])
