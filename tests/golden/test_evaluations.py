"""The random agent does on each task what is stored, however it is evaluated."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.golden.evaluations import FEW, SEEDS, SPLITS, Row, by_itself, in_a_run, stored

FAST = ("webshop", "bfcl")
"""Benchmarks whose engines evaluate fifty tasks in seconds."""


@pytest.mark.parametrize("evaluate", [in_a_run, by_itself])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "benchmark",
    [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in SPLITS],
)
def test_each_task_ends_as_stored(
    benchmark: str,
    seed: int,
    evaluate: Callable[[str, int], list[Row]],
    engine: Callable[[str], None],
) -> None:
    engine(benchmark)
    assert evaluate(benchmark, seed) == stored(benchmark)[str(seed)]


@pytest.mark.parametrize("benchmark", [name for name in SPLITS if name not in FAST])
def test_each_task_of_a_short_evaluation_ends_as_stored(
    benchmark: str, engine: Callable[[str], None]
) -> None:
    engine(benchmark)
    assert in_a_run(benchmark, SEEDS[0], FEW) == stored(benchmark)["few"]
