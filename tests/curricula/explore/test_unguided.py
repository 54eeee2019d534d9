"""What the explorers of a first task set are told: something else each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.random import SeedSequence

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.evolution import Context, Round
from coevo_gym.core.task import Split
from coevo_gym.curricula.explore.evolver import MAX_KNOWN, GatedEvolver
from coevo_gym.curricula.explore.explorer import Exploration
from coevo_gym.curricula.explore.guide import Guide
from coevo_gym.envs.tags import value_of_tag

N = 100


class Idle:
    """Finds nothing, and keeps where it was sent and with what chance."""

    concurrency = 8

    def __init__(self) -> None:
        self.contexts: list[Context] = []
        self.drawn: list[int] = []

    def explore(self, contexts: Sequence[Context], rngs: Sequence[Any]) -> list[Exploration]:
        self.contexts += contexts
        self.drawn += [int(rng.integers(2**31)) for rng in rngs]
        return [Exploration()] * len(contexts)


@pytest.mark.parametrize(
    "name", ["webshop", "bfcl", "alfworld", pytest.param("appworld", marks=pytest.mark.slow)]
)
def test_the_prompts_of_explorers_for_a_first_task_set_differ(
    name: str, engine: Callable[[str], None]
) -> None:
    engine(name)
    benchmark = get_benchmark(name)
    subset = "builtin" if "builtin" in benchmark.subsets else None
    native = benchmark.tasks(Split.TRAIN, subset)
    known = tuple(native[:30])
    guide = Guide("coevolve/guide", "coevolve/target", n_actions=18, tasks="- A rule.")
    for seed in range(3):
        explorer = Idle()
        round = Round.unguided(N, seed=seed).model_copy(update={"known": known})
        GatedEvolver(benchmark, explorer, native=native).run(round)
        contexts = explorer.contexts[:N]
        pairs = Counter(context.near for context in contexts)
        assert len(pairs) >= 60
        assert max(pairs.values()) <= 5
        for context in contexts:
            (cue,) = guide(context, None)
            assert len(context.near) == 2
            assert all(f": {value_of_tag(tag)}\n" in cue.text for tag in context.near)
            assert len(context.known) == MAX_KNOWN
            assert known[-1].instruction in context.known
            assert all(f"- {instruction}" in cue.text for instruction in context.known)


def test_choosing_tags_leaves_the_random_stream_of_explorers_unchanged() -> None:
    benchmark, explorer = get_benchmark("webshop"), Idle()
    native = benchmark.tasks(Split.TRAIN, "builtin")
    GatedEvolver(benchmark, explorer, native=native).run(Round.unguided(N, seed=7))
    for place in range(N):
        rng = np.random.default_rng(SeedSequence(7, spawn_key=(place,)))
        assert explorer.contexts[place].task == native[int(rng.integers(len(native)))]
        assert explorer.drawn[place] == int(rng.integers(2**31))
