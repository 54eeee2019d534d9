"""The random agent does on each task what is stored, however it is evaluated."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.golden.evaluations import (
    FEW,
    SEEDS,
    SPLITS,
    Row,
    evaluate_alone,
    evaluate_in_run,
    read_stored,
)
from tests.quick import slow_for

OTHERS = ("alfworld", "bfcl", "appworld")
"""Benchmarks that need more than seconds for the long evaluations."""


@pytest.mark.parametrize("evaluate", [evaluate_in_run, evaluate_alone])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "benchmark",
    slow_for(SPLITS, *OTHERS),
)
def test_the_random_agent_ends_each_task_as_stored(
    benchmark: str,
    seed: int,
    evaluate: Callable[[str, int], list[Row]],
    engine: Callable[[str], None],
) -> None:
    engine(benchmark)
    assert evaluate(benchmark, seed) == read_stored(benchmark)[str(seed)]


@pytest.mark.parametrize("benchmark", OTHERS)
def test_the_random_agent_ends_each_task_of_a_short_evaluation_as_stored(
    benchmark: str, engine: Callable[[str], None]
) -> None:
    engine(benchmark)
    assert evaluate_in_run(benchmark, SEEDS[0], FEW) == read_stored(benchmark)["few"]
