"""Exploration walks: ungraded episodes in which a guided agent explores the env."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import gymnasium as gym
from numpy.random import Generator

from coevo_gym.core.seams import Act, Agent
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Cue, EndReason, Trajectory, View
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes import EnvPool, Finished, Runner, TrainingEpisode
from coevo_gym.episodes.stopping import StoppingAgent

MakeEnv = Callable[[], gym.Env[Any, Any]]

MAX_STRAYS = 3
"""Number of consecutive ineffective actions after which a walk ends."""


class WalkStart(NamedTuple):
    """The starting point of an exploration walk.

    Attributes:
        task: the task that the agent is shown.
        cues: additional guidance for the agent.
        rng: generator that seeds the walk's env.
    """

    task: Task
    cues: tuple[Cue, ...]
    rng: Generator


class Walked(NamedTuple):
    """The result of one exploration walk.

    Attributes:
        rollout: the trajectory.
        problem: reason why the walk ended early; "" if it did not end early.
        unsent: True if the walk ended because the budget for model calls was spent.
    """

    rollout: Trajectory
    problem: str = ""
    unsent: bool = False


@dataclass(frozen=True)
class Walks:
    """A runner for concurrent exploration walks that uses the same code as training.

    All active walks query the agent together. A walk ends after its maximum number of steps, when
    the env ends it, after :data:`MAX_STRAYS` consecutive ineffective actions, or when the agent's
    model does not answer; the trajectory up to that point is kept. An engine failure raises an
    error, and the caller must then repeat all walks.

    Attributes:
        agent: the agent that acts.
        make_env: creates a new env.
        max_steps: maximum steps per walk; the env's own limit also applies.
        max_envs: maximum number of concurrent walks.
    """

    agent: Agent
    make_env: MakeEnv
    max_steps: int
    max_envs: int

    def run(self, starts: Sequence[WalkStart], agent: Agent | None = None) -> list[Walked]:
        """Run one exploration walk per starting point, and return the results in order.

        Raises:
            EnvBackendError: if an engine failed.
        """
        episodes = [
            TrainingEpisode(start.task, seed=int(start.rng.integers(2**31)), cues=start.cues)
            for start in starts
        ]
        walked: dict[int, Walked] = {}
        with closing(EnvPool(self._make_env, max_envs=self.max_envs)) as envs:
            for outcome in Runner(envs).run(episodes, _EarlyStoppingAgent(agent or self.agent)):
                if not isinstance(outcome, Finished):
                    raise outcome.error
                walked[outcome.index] = _to_walked(outcome.record)
        return [walked[place] for place in range(len(episodes))]

    def _make_env(self) -> gym.Env[Any, Any]:
        return unwrap_and_limit_steps(self.make_env(), self.max_steps)


def unwrap_and_limit_steps(env: gym.Env[Any, Any], max_steps: int) -> gym.Env[Any, Any]:
    """Return the unwrapped env with its step limit lowered to ``max_steps``."""
    inner = cast(TaskEnv, env.unwrapped)
    inner.max_steps = min(inner.max_steps, max_steps)
    return inner


class _EarlyStoppingAgent(StoppingAgent):
    """An agent that ends exploration walks that have become pointless.

    A walk ends after too many ineffective actions. It also ends, with its steps so far, if the
    model does not answer.
    """

    def stop(self, view: View) -> Act | None:
        return _stop_act() if _recent_actions_failed(view) else None

    def revise(self, act: Act) -> Act:
        return _stop_act(act.said) if act.end is not None and act.end.is_lost else act


def _stop_act(message: str = "") -> Act:
    return Act("", said=message, end=EndReason.TIME_LIMIT)


def _recent_actions_failed(view: View) -> bool:
    """Return True if none of the last :data:`MAX_STRAYS` actions had an effect."""
    came = [*(step.info for step in view.history[1:]), view.info] if view.history else []
    latest = came[-MAX_STRAYS:]
    return len(latest) == MAX_STRAYS and not any(info.get("action_valid") for info in latest)


def _to_walked(rollout: Trajectory) -> Walked:
    latest = rollout.steps[-MAX_STRAYS:]
    match rollout.end_reason:
        case EndReason.MAX_TOKENS:
            return Walked(rollout, "the budget for model calls is spent", unsent=True)
        case EndReason.CONTEXT_OVERFLOW:
            return Walked(rollout, "the prompt no longer fits into the model's context")
        case EndReason.REFUSED:
            return Walked(rollout, "a content filter rejected the prompt")
        case EndReason.TIME_LIMIT if len(latest) == MAX_STRAYS and all(
            step.error_kind for step in latest
        ):
            return Walked(rollout, f"{MAX_STRAYS} actions in a row had no effect")
        case EndReason.TIME_LIMIT:
            return Walked(rollout, "the model gave no answer")
    return Walked(rollout)


@dataclass(frozen=True)
class Phase:
    """A phase of an exploration walk, with its own agent and cue.

    Attributes:
        until: number of steps from the start of the walk to the end of the phase; None for the
            last.
        agent: the agent that acts, which also decides how much of the walk it sees.
        cue: text for the agent in this phase, in addition to the walk's cues.
    """

    until: int | None
    agent: Agent
    cue: Cue


class PhasedAgent:
    """An agent that acts in phases, each with its own agent and cue.

    The current phase depends on the number of steps in the walk. No state is kept, so walks in
    different phases can run at the same time. The phases' agents are queried one after another,
    each with all views in its phase.

    Args:
        phases: the phases in order; only the last phase has no end.
        identity: settings of the phases as JSON, to distinguish rounds explored with other phases.

    Raises:
        ValueError: if the phases are not in order.
    """

    def __init__(self, phases: Sequence[Phase], *, identity: Mapping[str, Any]) -> None:
        ends = [phase.until for phase in phases]
        rising = sorted({end for end in ends if end is not None})
        if ends != [*rising, None]:
            raise ValueError(
                "until must increase from one phase to the next and be None in the last phase, got "
                f"{ends}."
            )
        self._phases, self.identity = tuple(phases), dict(identity)

    def act(self, views: Sequence[View]) -> list[Act]:
        """Return one ``Act`` per view, in order."""
        of_phase: dict[int, list[int]] = {}
        for place, view in enumerate(views):
            of_phase.setdefault(self._phase_index(len(view.history)), []).append(place)
        acts: dict[int, Act] = {}
        for number, places in sorted(of_phase.items()):
            phase = self._phases[number]
            phase_views = [replace(views[p], cues=(*views[p].cues, phase.cue)) for p in places]
            acts.update(zip(places, phase.agent.act(phase_views), strict=True))
        return [acts[place] for place in range(len(views))]

    def _phase_index(self, step: int) -> int:
        ends = (phase.until for phase in self._phases)
        return next(n for n, end in enumerate(ends) if end is None or step < end)
