"""Explorers: components that revisit tasks where the agent is weak and propose new tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import gymnasium as gym
from numpy.random import Generator
from pydantic import Field

from coevo_gym.core.benchmark import Benchmark, proposes_tasks, require_proposable
from coevo_gym.core.errors import BuildError, TaskError
from coevo_gym.core.evolution import Context, Draft, Explored, Proposal
from coevo_gym.core.seams import Act
from coevo_gym.core.task import FrozenModel, Split, Task
from coevo_gym.core.trajectory import EndReason, View
from coevo_gym.curricula.explore.guide import Aim, task_to_explore
from coevo_gym.curricula.explore.walks import MakeEnv, unwrap_and_limit_steps
from coevo_gym.curricula.pool.task_pool import require_trainable
from coevo_gym.envs.tags import tags_of
from coevo_gym.episodes import EnvPool, Finished, TrainingEpisode, run_one


class ExplorerConfig(FrozenModel):
    """Settings for the explorer, which proposes new tasks in each round."""

    kind: Literal["scripted", "model", "noisy"] = "scripted"
    """``scripted`` repeats part of the agent's path and continues with random actions. ``model``
    lets a language model study the agent's path, try actions, and propose tasks. ``noisy`` is for
    experiments: it supplies native training tasks, breaks some of them, and bypasses all gates."""
    broken: float = Field(default=0.4, ge=0, le=1)
    """(noisy) Share of the supplied tasks that no episode can solve."""
    easy: float = Field(default=0.0, ge=0, le=1)
    """(noisy) Share of initial tasks that the initial policy already solves, based on success in
    8 attempts. These tasks are never broken."""
    walks: int = Field(default=2, ge=1)
    """Walks per context. With a target, the scripted explorer takes one half-length walk."""
    max_steps: int = Field(default=18, ge=1)
    """Maximum steps per walk. With ``noisy``, each task costs this many steps."""
    concurrency: int = Field(default=8, ge=1)
    """(model) Number of contexts to explore at once."""
    temperature: float = Field(default=0.7, ge=0)
    """(model) Sampling temperature; 0 is greedy. Unguided walks, such as walks for initial tasks,
    always use a temperature of 1."""
    max_answer_tokens: int = Field(default=2048, ge=1)
    """(model) Maximum number of tokens per summary and per answer with proposals."""


Found: TypeAlias = Proposal | Draft | str
"""An explorer's result: a model's proposal, a draft, or a draft's raw JSON text."""


def select_fittest(
    drafts: Sequence[Found], context: Context, benchmark: Benchmark
) -> Sequence[Found]:
    """Return the result that best fits the context's target, or all results if there is no target.

    The best result shares the most tags with the target; ties are broken by the fewest other tags,
    then by the model's confidence, then by order. A proposal is judged by the draft made from it.
    Proposals that cannot be drafted, drafts outside the training scenarios, and unparsed text rank
    last.
    """
    if not context.target or len(drafts) < 2:
        return drafts
    wanted = {*context.target}

    def misfit(one: Found) -> tuple[float, ...]:
        tags = _draft_tags(one, context, benchmark)
        sure = one.confidence if isinstance(one, Proposal) else 0.0
        return not tags, -len(wanted & tags), len(tags - wanted), -sure

    return [min(drafts, key=misfit)]


def _draft_tags(one: Found, context: Context, benchmark: Benchmark) -> set[str]:
    try:
        draft = (
            require_proposable(benchmark).draft(one, context) if isinstance(one, Proposal) else one
        )
        if isinstance(draft, str) or benchmark.split_of(draft.scenario) is not Split.TRAIN:
            return set()
        return {*tags_of(draft)}
    except (BuildError, TaskError, UnicodeEncodeError):
        return set()


@dataclass(frozen=True, slots=True)
class Exploration:
    """The result of exploring one context.

    Attributes:
        drafts: the drafts found.
        env_steps: env steps used.
        explored: record of the exploration, to display to users; None if there is no record.
        skipped: reason why the context was skipped, such as :data:`BUDGET`; "" if it was explored.
    """

    drafts: tuple[Found, ...] = ()
    env_steps: int = 0
    explored: Explored | None = None
    skipped: str = ""


BUDGET = "budget"
"""Reason for skipping a context when the budget is spent. All later contexts are also skipped."""


class Explorer(Protocol):
    """Interface for explorers, which turn contexts into drafts (proposed tasks)."""

    @property
    def concurrency(self) -> int:
        """The preferred number of contexts per call of :meth:`explore`, at least 1."""
        ...

    def explore(
        self, contexts: Sequence[Context], rngs: Sequence[Generator]
    ) -> Sequence[Exploration]:
        """Explore the env, starting from each context's task.

        Args:
            contexts: up to ``concurrency`` contexts with tasks to start from and the agent's
                actions.
            rngs: one generator per context, the only source of randomness.

        Returns:
            One exploration per context, in order.

        Raises:
            SplitLeakError: if a context's task is not a training task.
            EnvBackendError: if an engine failed; the caller decides whether to explore again.
        """
        ...


def require_explorable(benchmark: Benchmark, task: Task) -> None:
    """Check that an explorer may start from a task: it must be a training task.

    Raises:
        SplitLeakError, TaskError: as
            :func:`~coevo_gym.curricula.pool.task_pool.require_trainable`.
    """
    require_trainable(task, "explore from", benchmark)


def draw_evenly(choices: Sequence[str], rng: Generator) -> str:
    """Draw one of the choices uniformly."""
    return choices[int(rng.integers(len(choices)))]


@dataclass(frozen=True)
class Walker:
    """A scripted agent that follows a given path for a while, then acts at random.

    It abandons a walk when no actions are available.

    Attributes:
        choices: returns the actions available in a view, such as ``benchmark.choices``.
        lead: the agent's first actions.
        draw: draws one of the available actions; uniform by default.
    """

    choices: Callable[[View], Sequence[str]]
    lead: Sequence[str]
    rng: Generator
    draw: Callable[[Sequence[str], Generator], str] = draw_evenly

    def act(self, views: Sequence[View]) -> list[Act]:
        """Return one action for each view; abandon a walk if its view offers no choices."""
        return [self._next_act(view) for view in views]

    def _next_act(self, view: View) -> Act:
        step = len(view.history)
        choices = self.lead[step : step + 1] or self.choices(view)
        if not choices:
            return Act("", said="There is nothing to choose from.", end=EndReason.ABANDONED)
        return Act(self.draw(choices, self.rng))


@dataclass(frozen=True)
class ScriptedExplorer:
    """A scripted explorer that repeats part of the agent's path, then acts at random.

    Each walk starts where the task starts, repeats a random number of the context's first actions,
    and continues with random members of ``benchmark.choices(view)``. The benchmark abstracts each
    walk into drafts. The explorer sees what a policy sees, but never a solution or a verifier.

    For a context with a target, it takes one walk of half the length and keeps only the
    best-matching draft; for other contexts, it keeps the drafts from several walks. The walk
    towards a target starts from the context's opened task, which has no goal, and prefers choices
    that mention the target (:class:`Aim`).

    A benchmark that proposes tasks itself (:func:`~coevo_gym.core.benchmark.proposes_tasks`) is
    asked for drafts instead, without any walk.

    Attributes:
        benchmark: the benchmark whose tasks are explored.
        rounds: walks per context without a target.
        max_steps: maximum steps per walk without a target; the env's own limit also applies.
        make_env: creates a new env; None for ``gym.make(benchmark.env_id)``.
    """

    concurrency = 1

    benchmark: Benchmark
    rounds: int = 2
    max_steps: int = 18
    make_env: MakeEnv | None = None

    def explore(
        self, contexts: Sequence[Context], rngs: Sequence[Generator]
    ) -> Sequence[Exploration]:
        """Explore the env, starting from each context's task; see :class:`Explorer`."""
        return [self._explore_context(*each) for each in zip(contexts, rngs, strict=True)]

    def _explore_context(self, context: Context, rng: Generator) -> Exploration:
        require_explorable(self.benchmark, context.task)
        if proposes_tasks(self.benchmark):
            return self._explore_by_proposals(context, rng)
        drafts: list[Draft] = []
        steps = 0
        task = task_to_explore(self.benchmark, context)
        far, walks = self.max_steps, self.rounds
        make_env = self.make_env or (lambda: gym.make(self.benchmark.env_id))
        if context.target:
            far, walks = max(1, far // 2), 1
        with closing(EnvPool(lambda: unwrap_and_limit_steps(make_env(), far), max_envs=1)) as envs:
            for _ in range(walks):
                walk = TrainingEpisode(task, seed=int(rng.integers(2**31)))
                outcome = run_one(walk, self._make_walker(context, rng), envs)
                steps += outcome.env_steps
                if isinstance(outcome, Finished):
                    drafts += self.benchmark.drafts(outcome.record, context, rng)
                elif outcome.reason is not EndReason.ABANDONED:
                    raise outcome.error
        return Exploration(tuple(select_fittest(drafts, context, self.benchmark)), steps)

    def _explore_by_proposals(self, context: Context, rng: Generator) -> Exploration:
        proposing: Any = self.benchmark
        try:
            drafts = proposing.propose(context, rng)
        except BuildError as error:
            return Exploration(skipped=str(error))
        return Exploration(tuple(select_fittest(drafts, context, self.benchmark)))

    def _make_walker(self, context: Context, rng: Generator) -> Walker:
        lead = context.actions[: int(rng.integers(len(context.actions) + 1))]
        if not context.target:
            return Walker(self.benchmark.choices, lead, rng)
        aim = Aim(self.benchmark.choices, context.target)
        return Walker(aim.choices, lead, rng, aim.draw)
