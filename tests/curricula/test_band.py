from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from coevo_gym.core.seams import Curriculum
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.pool.task_stats import expected_rates
from coevo_gym.curricula.pool_curriculum import PoolCurriculum
from coevo_gym.curricula.selectors.band import Band, BandConfig, band_weights
from coevo_gym.testing.curriculum import assert_curriculum_contract
from tests.curricula.episodes import TRAIN, group


def of(place: int, solved: int, k: int = 8) -> Group:
    return group([1.0] * solved + [0.0] * (k - solved), TRAIN[place])


def band(n: int = 5, **settings: object) -> Band:
    curriculum = BandConfig(**settings).make()  # type: ignore[arg-type]
    curriculum.added(TRAIN[:n])
    return curriculum


def inside(chosen: Band) -> list[int]:
    """The tasks that get more than the share that all get."""
    weights = chosen.weights()
    return np.flatnonzero(weights > chosen.config.epsilon / len(weights) + 1e-12).tolist()


# The formula, on numbers worked out by hand.


def test_band_weights_equal_hand_computed_values() -> None:
    rates, visits = [0.95, 0.05, 0.5, 0.95, 0.5], [1, 1, 7, 0, 8]
    assert band_weights(rates, visits) == pytest.approx([0.02, 0.02, 0.47, 0.47, 0.02])
    without_cap = band_weights(rates, visits, cap=None)
    assert without_cap == pytest.approx([0.02, 0.02, 0.32, 0.32, 0.32])
    sharp = band_weights(rates, visits, epsilon=0)
    assert sharp == pytest.approx([0, 0, 0.5, 0.5, 0])


def test_the_band_includes_its_ends() -> None:
    weights = band_weights([0.9, 0.1, 0.9001, 0.0999], [1, 1, 1, 1], epsilon=0)
    assert weights.tolist() == [0.5, 0.5, 0, 0]


def test_weights_are_uniform_if_no_task_is_in_the_band() -> None:
    assert band_weights([0.95, 0.05, 0.5], [1, 2, 9]).tolist() == [1 / 3] * 3


@pytest.mark.parametrize(
    ("k", "mean", "visits"),
    [(8, 0.51, 1), (8, 0.31, 2), (4, 0.71, 1), (4, 0.69, 2), (4, 0.5, None), (8, 0.1, None)],
)
def test_a_task_that_always_succeeds_leaves_the_band_after_the_expected_visits(
    k: int, mean: float, visits: int | None
) -> None:
    alpha, left = 0.0, None
    for number in range(1, 50):
        alpha = alpha / 2 + k
        (rate,) = expected_rates([alpha], [0], mean)
        if band_weights([rate, 0.5], [number, 1], cap=None, epsilon=0)[0] == 0:
            left = left or number
    assert left == visits


def test_a_task_with_a_mixed_first_group_stays_in_the_band() -> None:
    for mean in (0.05, 0.5, 0.95):
        rates = expected_rates([7, 1], [1, 7], mean)
        assert band_weights(rates, [1, 1], epsilon=0).tolist() == [0.5, 0.5]


def test_equal_tasks_or_full_exploration_give_uniform_weights() -> None:
    assert band_weights([0.5] * 4, [0] * 4) == pytest.approx([0.25] * 4)
    assert band_weights([0.5, 0.95], [1, 1], epsilon=1) == pytest.approx([0.5, 0.5])


# The selector.


def test_tasks_that_always_or_never_succeed_are_left_out() -> None:
    chosen = band()
    chosen.record([of(0, 8), of(1, 0), of(2, 4), of(3, 4)])
    # The mean is 1/2, so one visit is just not enough: p is 0.9 and 0.1.
    assert inside(chosen) == [0, 1, 2, 3, 4]
    chosen.record([of(0, 8), of(1, 0)])
    assert inside(chosen) == [2, 3, 4]
    chosen.record([of(0, 3)])  # forgotten, and noticed in one of the few draws
    assert inside(chosen) == [0, 2, 3, 4]


def test_tasks_are_left_out_after_the_capped_number_of_visits() -> None:
    for cap, left in ((2, [1, 2, 3, 4]), (3, [0, 1, 2, 3, 4]), (None, [0, 1, 2, 3, 4])):
        chosen = band(cap=cap)
        chosen.record([of(0, 4), of(0, 4)])
        assert inside(chosen) == left


def test_metrics_give_the_shares_of_too_easy_too_hard_and_used_up_tasks() -> None:
    chosen = band(10, cap=3)
    chosen.record([of(0, 8), of(1, 0), of(2, 4), of(0, 8), of(1, 0), of(2, 4), of(2, 4)])
    assert chosen.metrics() == {"too_easy": 0.1, "too_hard": 0.1, "used_up": 0.1}
    assert BandConfig().make().metrics() == {"too_easy": 0, "too_hard": 0, "used_up": 0}


def test_no_task_is_drawn_twice_in_a_step_if_the_pool_has_enough() -> None:
    curriculum = PoolCurriculum(TRAIN[:8], selector=BandConfig(epsilon=1e-9).make())
    for _ in range(3):
        curriculum.record([of(place, 8 * (place % 2)) for place in range(6)])
    for seed in range(50):
        tasks = curriculum.next(8, np.random.default_rng(seed))
        assert len({task.id for task in tasks}) == 8
        assert {task.id for task in tasks[:2]} == {task.id for task in curriculum.pool.tasks[6:]}


def test_settings_out_of_bounds_are_refused() -> None:
    for wrong in ({"cap": 0}, {"epsilon": 0.0}, {"epsilon": 1.1}):
        with pytest.raises(ValidationError):
            BandConfig(**wrong)  # type: ignore[arg-type]


# The control.


def uneven(*, shuffled: bool, cap: int | None = 8) -> Band:
    """Of 20 tasks 15 were visited: 5 always solved, 5 never, 5 half of the time."""
    chosen = band(20, shuffled=shuffled, cap=cap)
    for _ in range(3):
        chosen.record([of(place, (8, 0, 4)[place // 5]) for place in range(15)])
    return chosen


def test_the_shuffled_control_uses_the_outcomes_of_other_tasks() -> None:
    read, swapped = uneven(shuffled=False), uneven(shuffled=True)
    assert inside(read) == list(range(10, 20))
    assert sorted(swapped.rates) == sorted(read.rates)
    assert swapped.rates[15:].tolist() == read.rates[15:].tolist()
    assert len(inside(swapped)) == len(inside(read))
    assert set(inside(swapped)) > set(range(15, 20))
    assert swapped.weights().tolist() == swapped.weights().tolist()
    assert swapped.stats.state_dict() == read.stats.state_dict()


def test_the_shuffled_control_leaves_out_every_visited_task_equally_often() -> None:
    chosen, counts = uneven(shuffled=True, cap=None), Counter[int]()
    for _ in range(600):
        counts.update(set(inside(chosen)) & set(range(15)))
        chosen.stats.visits[0] += 1  # another state, the same outcomes
    assert 0.8 * 200 < min(counts.values()) <= max(counts.values()) < 1.2 * 200


@pytest.mark.parametrize("shuffled", [False, True])
def test_the_band_selector_keeps_the_contract_of_a_curriculum(shuffled: bool) -> None:
    def fresh() -> Curriculum:
        return PoolCurriculum(TRAIN[:12], selector=BandConfig(cap=3, shuffled=shuffled).make())

    assert_curriculum_contract(fresh, benchmark="toy")


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8)), max_size=40),
    st.booleans(),
    st.sampled_from([1, 3, None]),
)
def test_only_tasks_outside_the_band_or_used_up_are_left_out(
    visits: list[tuple[int, int]], shuffled: bool, cap: int | None
) -> None:
    chosen = band(6, cap=cap, shuffled=shuffled)
    for place, solved in visits:
        chosen.record([of(place, solved)])
    seen = Counter(place for place, _ in visits)
    weights = chosen.weights()
    assert weights.sum() == pytest.approx(1)
    assert weights.min() >= 0.1 / 6 - 1e-12
    places = inside(chosen)
    for place, rate in enumerate(chosen.rates):
        out = seen[place] and (not 0.1 <= rate <= 0.9 or (cap is not None and seen[place] >= cap))
        assert (place in places) == (not out) or len(places) == 6
