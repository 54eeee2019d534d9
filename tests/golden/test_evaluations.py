"""The random agent does on each task what is stored, however it is evaluated."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.golden.evaluations import SEEDS, SPLITS, Row, by_itself, in_a_run, stored

CASES = [
    pytest.param(
        benchmark,
        seed,
        evaluate,
        id=f"{benchmark}-{seed}-{evaluate.__name__}",
        marks=[pytest.mark.slow]
        if benchmark != "webshop" and (seed != SEEDS[0] or evaluate is by_itself)
        else [],
    )
    for benchmark in SPLITS
    for seed in SEEDS
    for evaluate in (in_a_run, by_itself)
]


@pytest.mark.parametrize(("benchmark", "seed", "evaluate"), CASES)
def test_each_task_ends_as_stored(
    benchmark: str,
    seed: int,
    evaluate: Callable[[str, int], list[Row]],
    engine: Callable[[str], None],
) -> None:
    engine(benchmark)
    assert evaluate(benchmark, seed) == stored(benchmark)[str(seed)]
