from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.task import Task
from coevo_gym.curricula.growth.choice import farthest_first, quota
from coevo_gym.curricula.growth.signal_growth import GrowthConfig, SignalGrowth
from coevo_gym.curricula.pool.embed import words
from coevo_gym.curricula.pool_curriculum import CurriculumConfig, PoolCurriculum
from tests.curricula.episodes import TRAIN, group

RNG = np.random.default_rng
CONTEXTS = ("signals", "coverage", "learnable", "progress", "mixed")


def growing(contexts: str, n_tasks: int = 12, **settings: Any) -> PoolCurriculum:
    config = GrowthConfig(growth={"contexts": contexts, "every_groups": 4, **settings})
    return PoolCurriculum(TRAIN[:n_tasks], growth=SignalGrowth(config))


def planned(c: PoolCurriculum, seed: int = 0) -> Round:
    next_round = c.plan(RNG(seed))
    assert next_round is not None
    return next_round


@pytest.mark.parametrize(
    ("points", "covered", "k", "chosen"),
    [
        ([[1, 0], [0, 1], [-1, 0], [0.6, 0.8]], [[1, 0]], 3, [2, 1, 3]),
        ([[1, 0], [0, 1]], [], 2, [0, 1]),
        ([[1, 0], [0, 1]], [[0, 2]], 5, [0, 1]),
        (
            [
                [-0.9699, -0.3752, -0.808, -0.0049],
                [0.234, 0.2092, 0.0467, -0.9865],
                [-0.2684, 0.8814, -0.1881, -0.0909],
                [-0.7728, -0.1668, -0.4749, 0.668],
                [-0.9771, -0.2411, -0.183, -0.8102],
                [0.1976, 0.7629, -0.7942, -0.4288],
                [0.1403, -0.7112, 0.2795, -0.8328],
            ],
            [[-0.6698, -0.363, -0.3217, 0.731], [0.5374, -0.2546, -0.8089, -0.6483]],
            4,
            [2, 4, 6, 1],
        ),
    ],
)
def test_farthest_first_chooses_the_expected_points(
    points: list[list[float]], covered: list[list[float]], k: int, chosen: list[int]
) -> None:
    assert farthest_first(points, covered, k) == chosen


@pytest.mark.parametrize(
    ("n", "share", "guided", "coverage", "expected"),
    [
        (8, 0.5, 2, 100, (2, 6)),
        (8, 0.5, 100, 1, (7, 1)),
        (10, 0.7589, 16, 1, (9, 1)),
        (13, 0.4174, 6, 9, (6, 7)),
        (6, 0.295, 2, 9, (2, 4)),
        (10, 0.7, 20, 20, (7, 3)),  # 0.7 * 10 is a little more than 7
        (8, 0.5, 1, 2, (1, 2)),
    ],
)
def test_the_quota_divides_places_between_guided_and_coverage_contexts(
    n: int, share: float, guided: int, coverage: int, expected: tuple[int, int]
) -> None:
    assert quota(n, share, guided=guided, coverage=coverage) == expected


def test_learnable_contexts_start_from_tasks_solved_about_half_of_the_time() -> None:
    c = growing("learnable", max_contexts=2)
    outcomes = ([1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0])
    c.record([group(list(map(float, o)), c.pool[i]) for i, o in enumerate(outcomes)])
    contexts = planned(c).contexts
    assert [context.task for context in contexts] == [c.pool[1], c.pool[3]]
    assert {context.kind for context in contexts} == {"learnable"}
    assert "0.25" in contexts[0].summary


def _colours(task: Task) -> list[str]:
    return words(task.instruction)[1:]


def test_progress_contexts_start_from_tasks_whose_success_changes() -> None:
    # Tasks of the one kind get better, the others stay as they are.
    first = [task for task in TRAIN if set(_colours(task)) <= {"red", "green"}][:3]
    others = [task for task in TRAIN if set(_colours(task)) <= {"white", "amber"}][:3]
    growth = growing("progress", max_contexts=2).growth
    c = PoolCurriculum((*first, *others), growth=growth)
    for outcome in (0.0, 1.0):
        c.record([group([outcome] * 4, task) for task in first])
        c.record([group([1.0, 0.0], task) for task in others])
    contexts = planned(c).contexts
    assert {context.task.id for context in contexts} == {task.id for task in first}
    assert {context.kind for context in contexts} == {"progress"}


def test_coverage_contexts_start_from_other_tasks_in_each_round() -> None:
    c = growing("coverage", max_contexts=2)
    seen = Counter[str]()
    for i in range(4):
        c.record([group([1.0, 0.0], task) for task in c.pool])
        next_round = planned(c, i)
        assert {context.kind for context in next_round.contexts} == {"coverage"}
        seen.update(context.task.id for context in next_round.contexts)
        c.apply(RoundResult(round_id=next_round.id))
    assert len(seen) == 8  # nothing twice


def test_mixed_contexts_are_half_boundary_and_half_coverage() -> None:
    c = growing("mixed", max_contexts=6)
    c.record([group([1.0, 0.0], task) for task in c.pool])
    kinds = Counter(context.kind for context in planned(c).contexts)
    assert kinds == {"boundary": 3, "coverage": 3}


def test_a_signal_makes_a_round_due_for_every_choice_of_contexts() -> None:
    for contexts in CONTEXTS:
        c = growing(contexts)
        c.record([group([1.0, 1.0], task) for task in c.pool])
        assert c.plan(RNG(0)) is None
        c.record([group([1.0, 0.0], c.pool[0])])
        assert planned(c).contexts


@given(
    st.sampled_from(CONTEXTS),
    st.sampled_from(["signals", "reserve"]),
    st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=4), min_size=1, max_size=30),
    st.integers(0, 99),
)
def test_a_saved_growth_continues_the_same_stream(
    contexts: str, when: str, outcomes: list[list[int]], seed: int
) -> None:
    config = CurriculumConfig(
        growth={"contexts": contexts, "when": when, "every_groups": 3, "max_contexts": 3},
        detector={"n_min": 4},
    )

    def live(c: PoolCurriculum, rng: np.random.Generator) -> list[object]:
        seen: list[object] = []
        for number, outcome in enumerate(outcomes):
            (task,) = c.next(1, rng)
            seen += c.record([group(list(map(float, outcome)), task, id=f"g{number}")])
            next_round = c.plan(rng)
            if next_round is not None:
                seen.append(next_round)
                fresh = tuple(TRAIN[int(i)] for i in rng.integers(60, size=2))
                c.apply(RoundResult(round_id=next_round.id, accepted=fresh))
        return seen

    original, copy = config.make(TRAIN[:6]), config.make()
    live(original, RNG(seed))
    copy.load_state_dict(json.loads(json.dumps(original.state_dict())))
    assert live(original, RNG(7)) == live(copy, RNG(7))
    assert original.state_dict() == copy.state_dict()


class Twice:
    """A growth of one's own, with nothing but what its Protocol asks for."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def record(self, groups: Any) -> list[Any]:
        return []

    def plan(self, pool: Any, rng: Any) -> Round | None:
        return Round.unguided(2, seed=1) if len(pool) < 5 else None

    def apply(self, result: RoundResult) -> None:
        self.heard.append(result.round_id)

    def note(self, notes: Any) -> None: ...
    def metrics(self) -> dict[str, float]:
        return {"heard": float(len(self.heard))}

    def state_dict(self) -> dict[str, Any]:
        return {"heard": list(self.heard)}

    def load_state_dict(self, state: Any) -> None:
        self.heard = list(state["heard"])


def test_a_custom_growth_needs_no_bookkeeping() -> None:
    c = PoolCurriculum(growth=Twice())
    ids = []
    for i in range(3):
        next_round = planned(c)
        ids.append(next_round.id)
        assert next_round.known == tuple(c.pool)
        result = RoundResult(round_id=next_round.id, accepted=TRAIN[2 * i : 2 * i + 2])
        c.apply(result)
        c.apply(result)
    assert ids == ["round-0", "round-1", "round-2"]
    assert c.plan(RNG(0)) is None
    assert (c.metrics()["heard"], c.metrics()["rounds"], c.metrics()["pool_size"]) == (3, 3, 6)


def test_a_curriculum_without_growth_detects_signals_but_plans_no_round() -> None:
    c = PoolCurriculum(TRAIN[:3])
    assert {signal.kind for signal in c.record([group([1.0, 0.0])])} == {"boundary"}
    for _ in range(400):
        c.record([group([1.0, 0.0])])
    assert c.plan(RNG(0)) is None
