"""Explorers: who goes back into the environment where the agent is weak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import gymnasium as gym
from numpy.random import Generator

from coevo_gym.core.benchmark import Benchmark, check_claim
from coevo_gym.core.evolution import Context, Draft
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Trajectory
from coevo_gym.curricula.pool.pool import require_train
from coevo_gym.envs.base import TaskEnv

MakeEnv = Callable[[], gym.Env[Any, Any]]


@dataclass(frozen=True, slots=True)
class Exploration:
    """What came of exploring one context.

    Attributes:
        drafts: proposals, as drafts or as the raw JSON text of some.
        env_steps: env steps that it took.
    """

    drafts: tuple[Draft | str, ...]
    env_steps: int = 0


class Explorer(Protocol):
    """Goes out with a context and comes back with drafts."""

    def explore(self, context: Context, rng: Generator) -> Exploration:
        """Explore from the context's task.

        Args:
            context: where, and what the agent did there.
            rng: the only source of chance.

        Raises:
            SplitLeakError: if the context's task is not a training task.
        """
        ...


class ScriptedExplorer:
    """An explorer without a model: the agent's own way for a while, then random choices.

    Each walk starts where the task starts, repeats a random number of the context's first actions,
    and goes on with random members of ``benchmark.choices(view)``. The benchmark abstracts each
    walk into drafts. The explorer sees what a policy sees, and never a solution or a verifier.

    Args:
        benchmark: whose tasks are explored.
        rounds: walks for each context.
        max_steps: most steps of a walk; the env's own limit if that is lower.
        make_env: makes a fresh env; None for ``gym.make(benchmark.env_id)``.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        *,
        rounds: int = 2,
        max_steps: int = 18,
        make_env: MakeEnv | None = None,
    ) -> None:
        self.benchmark = benchmark
        self.rounds = rounds
        self.max_steps = max_steps
        self.make_env = make_env or (lambda: gym.make(benchmark.env_id))

    def explore(self, context: Context, rng: Generator) -> Exploration:
        """See :class:`Explorer`."""
        self._check(context.task)
        drafts: list[Draft] = []
        steps = 0
        env = self.make_env()
        try:
            for _ in range(self.rounds):
                walk, walked = self._walk(cast(TaskEnv, env.unwrapped), context, rng)
                steps += walked
                if walk is not None:
                    drafts += self.benchmark.drafts(walk, context, rng)
        finally:
            env.close()
        return Exploration(tuple(drafts), steps)

    def _check(self, task: Task) -> None:
        require_train(task, "explore from")
        check_claim(task, self.benchmark.side_of(task), "explore from")

    def _walk(
        self, env: TaskEnv, context: Context, rng: Generator
    ) -> tuple[Trajectory | None, int]:
        """One walk and its length; no trajectory if it stood before nothing to choose."""
        env.max_steps = min(env.max_steps, self.max_steps)
        env.reset(seed=int(rng.integers(2**31)), options={"task": context.task})
        lead = context.actions[: int(rng.integers(len(context.actions) + 1))]
        steps, over = 0, False
        while not over:
            choices: Sequence[str] = lead[steps : steps + 1] or self.benchmark.choices(env.view)
            if not choices:
                return None, steps
            action = choices[int(rng.integers(len(choices)))]
            _, _, terminated, truncated, _ = env.step(action)
            steps, over = steps + 1, terminated or truncated
        return env.trajectory(), steps
