"""Explorers: who goes back into the environment where the agent is weak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import gymnasium as gym
from numpy.random import Generator

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.evolution import Context, Draft, Explored
from coevo_gym.core.seams import Act
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import EndReason, View
from coevo_gym.curricula.explore.aim import Aim, opened_for
from coevo_gym.curricula.explore.found import Found, fittest
from coevo_gym.curricula.explore.walks import MakeEnv, shortened
from coevo_gym.curricula.pool.pool import require_trainable
from coevo_gym.episodes import EnvPool, Finished, TrainingEpisode, run_one


@dataclass(frozen=True, slots=True)
class Exploration:
    """What came of exploring one context.

    Attributes:
        drafts: what was found there.
        env_steps: env steps that it took.
        explored: what it was like, for people to look at; None where there is nothing to tell.
        skipped: why the context was left out, such as :data:`BUDGET`; "" if it was explored.
    """

    drafts: tuple[Found, ...] = ()
    env_steps: int = 0
    explored: Explored | None = None
    skipped: str = ""


BUDGET = "budget"
"""Why a context is left out when nothing more may be spent; nor will the next one be explored."""


class Explorer(Protocol):
    """Goes out with contexts and comes back with drafts."""

    @property
    def concurrency(self) -> int:
        """How many contexts it likes to be given at once, at least 1."""
        ...

    def explore(
        self, contexts: Sequence[Context], rngs: Sequence[Generator]
    ) -> Sequence[Exploration]:
        """Explore from the task of each context.

        Args:
            contexts: where, and what the agent did there; at most ``concurrency``.
            rngs: for each context the only source of chance.

        Returns:
            One exploration each, in order.

        Raises:
            SplitLeakError: if a context's task is not a training task.
            EnvBackendError: if an engine failed; to explore again is then the caller's to decide.
        """
        ...


def require_explorable(benchmark: Benchmark, task: Task) -> None:
    """Refuse to explore from a task that is not for training, whatever it claims to be.

    Raises:
        SplitLeakError, TaskError: as
            :func:`~coevo_gym.curricula.pool.pool.require_trainable`.
    """
    require_trainable(task, "explore from", benchmark)


def drawn_evenly(choices: Sequence[str], rng: Generator) -> str:
    """One of the choices, each as likely as any other."""
    return choices[int(rng.integers(len(choices)))]


class Walker:
    """An agent without a model: it goes one way for a while, and then wherever chance leads.

    It gives a walk up where there is nothing to choose from.

    Args:
        choices: what may be done in a view, ``benchmark.choices``.
        lead: its first actions.
        rng: all of its randomness.
        draw: chooses one of what may be done; uniformly, if nothing else is said.
    """

    def __init__(
        self,
        choices: Callable[[View], Sequence[str]],
        lead: Sequence[str],
        rng: Generator,
        draw: Callable[[Sequence[str], Generator], str] = drawn_evenly,
    ) -> None:
        self._choices = choices
        self._lead = lead
        self._rng = rng
        self._draw = draw

    def act(self, views: Sequence[View]) -> list[Act]:
        """One draw a view, also where the way leaves no choice."""
        return [self._next(view) for view in views]

    def _next(self, view: View) -> Act:
        step = len(view.history)
        choices = self._lead[step : step + 1] or self._choices(view)
        if not choices:
            return Act("", said="There is nothing to choose from.", end=EndReason.ABANDONED)
        return Act(self._draw(choices, self._rng))


class ScriptedExplorer:
    """An explorer without a model: the agent's own way for a while, then random choices.

    Each walk starts where the task starts, repeats a random number of the context's first actions,
    and goes on with random members of ``benchmark.choices(view)``. The benchmark abstracts each
    walk into drafts. The explorer sees what a policy sees, and never a solution or a verifier.

    Towards a target it walks once and half as far, since one draft is kept, where two walks from
    other contexts are worth several: from the context's task, opened, and rather by choices that
    speak of the target (:class:`Aim`). The draft that fits best is kept.

    Args:
        benchmark: whose tasks are explored.
        rounds: walks for each context without a target.
        max_steps: most steps of a walk without a target; the env's own limit if that is lower.
        make_env: makes a fresh env; None for ``gym.make(benchmark.env_id)``.
    """

    concurrency = 1

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

    def explore(
        self, contexts: Sequence[Context], rngs: Sequence[Generator]
    ) -> Sequence[Exploration]:
        """See :class:`Explorer`."""
        return [self._explore(*each) for each in zip(contexts, rngs, strict=True)]

    def _explore(self, context: Context, rng: Generator) -> Exploration:
        require_explorable(self.benchmark, context.task)
        drafts: list[Draft] = []
        steps = 0
        task = opened_for(self.benchmark, context)
        far, walks = self.max_steps, self.rounds
        if context.target:
            far, walks = max(1, far // 2), 1
        with closing(EnvPool(lambda: shortened(self.make_env(), far), max_envs=1)) as envs:
            for _ in range(walks):
                walk = TrainingEpisode(task, seed=int(rng.integers(2**31)))
                found = run_one(walk, self._walker(context, rng), envs)
                steps += found.env_steps
                if isinstance(found, Finished):
                    drafts += self.benchmark.drafts(found.record, context, rng)
                elif found.reason is not EndReason.ABANDONED:
                    raise found.error
        return Exploration(tuple(fittest(drafts, context, self.benchmark)), steps)

    def _walker(self, context: Context, rng: Generator) -> Walker:
        lead = context.actions[: int(rng.integers(len(context.actions) + 1))]
        if not context.target:
            return Walker(self.benchmark.choices, lead, rng)
        aim = Aim(self.benchmark.choices, context.target)
        return Walker(aim.choices, lead, rng, aim.draw)
