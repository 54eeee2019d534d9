"""A set that grows has, after each addition, the numbers of the set as it is then."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.curricula.pool.growing import GrowingSet
from tests.formulas.coevolve import energy_distance, self_similarity


@given(
    first=st.integers(2, 12),
    sizes=st.lists(st.integers(0, 7), max_size=5),
    k=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_a_growing_set_agrees_with_the_formulas_after_each_addition(
    first: int, sizes: list[int], k: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(first + sum(sizes), 6))
    rows[rng.random(len(rows)) < 0.2] = rows[0]  # some tasks are alike
    tasks, n = GrowingSet(rows[:first], k=k), first
    for size in (0, *sizes):
        tasks.add(rows[n : n + size])
        n += size
        assert tasks.self_similarity == pytest.approx(self_similarity(rows[:n], k), abs=1e-9)
        if n - first >= 2 and len(np.unique(rows[:first], axis=0)) > 1:
            expected = energy_distance(rows[:first], rows[first:n]).relative
            assert tasks.distance == pytest.approx(expected, abs=1e-6)
        elif n - first < 2:
            assert math.isnan(tasks.distance)


def test_numbers_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coevo_gym.curricula.pool.growing._ROWS", 3)
    rows = np.random.default_rng(5).normal(size=(23, 4))
    tasks = GrowingSet(rows[:8])
    tasks.add(rows[8:20])
    tasks.add(rows[20:])
    assert tasks.self_similarity == pytest.approx(self_similarity(rows))
    assert tasks.distance == pytest.approx(energy_distance(rows[:8], rows[8:]).relative)


@pytest.mark.parametrize("n", [0, 1])
def test_numbers_of_too_few_tasks_are_nan(n: int) -> None:
    tasks = GrowingSet(np.ones((n, 3)))
    assert math.isnan(tasks.self_similarity)
    assert math.isnan(tasks.distance)
    tasks.add(np.eye(3))
    assert math.isfinite(tasks.self_similarity)
    assert math.isnan(tasks.distance)


def test_the_distance_from_equal_first_tasks_is_nan() -> None:
    tasks = GrowingSet(np.ones((4, 3)))
    tasks.add(np.eye(3))
    assert math.isnan(tasks.distance)
