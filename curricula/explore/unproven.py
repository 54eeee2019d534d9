"""A generator that fails: tasks that nobody has proven, to measure what selection is worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np
from numpy.random import Generator

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Round, RoundResult, Verdict
from coevo_gym.core.task import FrozenDict, Task
from coevo_gym.curricula.pool.pool import require_train
from coevo_gym.curricula.signals.kinds import UNPROVEN


class Breakable(Benchmark, Protocol):
    """A benchmark whose tasks can be broken."""

    def broken(self, task: Task) -> Task:
        """The same task, judged so that no episode solves it; nothing that is shown tells so."""
        ...


def breakable(benchmark: Benchmark) -> Breakable:
    """The benchmark, if its tasks can be broken.

    Raises:
        ConfigError: if it has no ``broken``.
    """
    if not hasattr(benchmark, "broken"):
        raise ConfigError(
            f"Tasks of {benchmark.name} cannot be broken, so explorer.kind = 'noisy' has none to "
            "bring. Set explorer.broken = 0, choose webshop, or give the benchmark a method "
            "broken(task)."
        )
    return cast(Breakable, benchmark)


class UnprovenEvolver:
    """Brings native training tasks, a share of them broken, and proves none of them.

    It explores nothing and has no gates. Towards a target it brings the task that the target was
    planned from; every other task is drawn at random. Each one is charged as many env steps as one
    walk of an explorer may take, so that an arm that asks for more pays for it.

    Args:
        benchmark: whose tasks they are.
        native: the training tasks to draw from.
        broken: share of the tasks that nothing solves, in [0, 1].
        steps_each: env steps that a task is charged.

    Raises:
        ConfigError: if there is nothing to draw from, or tasks of the benchmark cannot be broken.
    """

    def __init__(
        self, benchmark: Benchmark, native: Sequence[Task], *, broken: float, steps_each: int
    ) -> None:
        if not len(native):
            raise ConfigError(f"{benchmark.name} has no training task to bring.")
        if broken:
            breakable(benchmark)
        self.benchmark = benchmark
        self.native = native
        self.broken = broken
        self.steps_each = steps_each

    def run(self, round: Round) -> RoundResult:
        """See :class:`~coevo_gym.core.seams.Evolver`; a function of the round.

        Raises:
            SplitLeakError: if a task to bring is no training task.
        """
        rng = np.random.default_rng(round.seed)
        found = tuple(self._brought(task, round, rng) for task in self._drawn(round, rng))
        verdicts = tuple(
            Verdict(draft_id=task.id[:16], accepted=True, task_id=task.id) for task in found
        )
        return RoundResult(
            round_id=round.id,
            accepted=found,
            verdicts=verdicts,
            env_steps=self.steps_each * len(found),
        )

    def _drawn(self, round: Round, rng: Generator) -> list[Task]:
        n = min(round.n_wanted or round.budget, round.budget)
        drawn = [context.task for context in round.contexts if context.target][:n]
        left = min(n - len(drawn), len(self.native))
        places = rng.choice(len(self.native), size=left, replace=False)
        return [*drawn, *(self.native[int(place)] for place in places)]

    def _brought(self, task: Task, round: Round, rng: Generator) -> Task:
        require_train(task, "bring")
        breaks = bool(rng.random() < self.broken)
        provenance = FrozenDict(kind=UNPROVEN, round=round.id, broken=breaks)
        if breaks:
            task = (
                breakable(self.benchmark)
                .broken(task)
                .model_copy(update={"name": f"{task.name}/broken", "parents": (task.id,)})
            )
        return task.model_copy(update={"provenance": provenance})
