"""Walks: an agent goes back into the env, with words to guide it and without a grade."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple, cast

import gymnasium as gym
from numpy.random import Generator

from coevo_gym.core.seams import Act, Agent
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Cue, EndReason, Trajectory, View
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes import EnvPool, Finished, Runner, TrainingEpisode

MakeEnv = Callable[[], gym.Env[Any, Any]]

MAX_STRAYS = 3
"""A walk ends when so many actions in a row had no effect."""


class Start(NamedTuple):
    """Where walks begin.

    Attributes:
        task: what the agent is shown.
        cues: what it is told beyond that.
        rng: seeds the walks' envs.
    """

    task: Task
    cues: tuple[Cue, ...]
    rng: Generator


class Walked(NamedTuple):
    """What came of one walk.

    Attributes:
        rollout: what was done.
        problem: why it ended before its time, in words; "" if it did not.
        unsent: whether it ended because nothing more may be spent on asking.
    """

    rollout: Trajectory
    problem: str = ""
    unsent: bool = False


class Walks:
    """Sends an agent out from several places at once, with the code that training runs on.

    All walks that are under way ask the agent together. One ends at its most steps, where the env
    ends it, after :data:`MAX_STRAYS` actions in a row that had no effect, or when the agent's model
    gives no answer; what was done until then is kept. A lost engine is an error: a piece of work
    is then done again as a whole.

    Args:
        agent: who walks.
        make_env: makes a fresh env.
        max_steps: most steps of a walk; the env's own limit if that is lower.
        max_envs: most walks under way at once.
    """

    def __init__(self, agent: Agent, make_env: MakeEnv, *, max_steps: int, max_envs: int) -> None:
        self.agent = agent
        self.make_env = make_env
        self.max_steps = max_steps
        self.max_envs = max_envs

    def run(self, starts: Sequence[Start], agent: Agent | None = None) -> list[Walked]:
        """A walk from each place, in order.

        Args:
            starts: the places.
            agent: who walks; None for the usual one.

        Raises:
            EnvBackendError: if an engine failed.
        """
        episodes = [
            TrainingEpisode(start.task, seed=int(start.rng.integers(2**31)), cues=start.cues)
            for start in starts
        ]
        walked: dict[int, Walked] = {}
        with closing(EnvPool(self._make_env, max_envs=self.max_envs)) as envs:
            for found in Runner(envs).run(episodes, _Patient(agent or self.agent)):
                if not isinstance(found, Finished):
                    raise found.error
                walked[found.index] = _walked(found.record)
        return [walked[place] for place in range(len(episodes))]

    def _make_env(self) -> gym.Env[Any, Any]:
        return shortened(self.make_env(), self.max_steps)


def shortened(env: gym.Env[Any, Any], max_steps: int) -> gym.Env[Any, Any]:
    """The env inside, with so many steps an episode at most."""
    inner = cast(TaskEnv, env.unwrapped)
    inner.max_steps = min(inner.max_steps, max_steps)
    return inner


class _Patient:
    """An agent that goes on as long as that makes sense.

    It gives no answer for one who strays, and where the model gives none it stops, instead of
    having what it has done lost.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def act(self, views: Sequence[View]) -> list[Act]:
        going = [view for view in views if not _strays(view)]
        acts = iter(self._agent.act(going) if going else ())
        return [_stop() if _strays(view) else _kept(next(acts)) for view in views]


def _stop(said: str = "") -> Act:
    return Act("", said=said, end=EndReason.TIME_LIMIT)


def _kept(act: Act) -> Act:
    return _stop(act.said) if act.end is not None and act.end.lost else act


def _strays(view: View) -> bool:
    """Whether none of the latest actions had an effect."""
    came = [*(step.info for step in view.history[1:]), view.info] if view.history else []
    latest = came[-MAX_STRAYS:]
    return len(latest) == MAX_STRAYS and not any(info.get("action_valid") for info in latest)


def _walked(rollout: Trajectory) -> Walked:
    latest = rollout.steps[-MAX_STRAYS:]
    match rollout.end_reason:
        case EndReason.MAX_TOKENS:
            return Walked(rollout, "nothing more may be spent", unsent=True)
        case EndReason.CONTEXT_OVERFLOW:
            return Walked(rollout, "the model had no room for more")
        case EndReason.TIME_LIMIT if len(latest) == MAX_STRAYS and all(
            step.error_kind for step in latest
        ):
            return Walked(rollout, f"{MAX_STRAYS} actions in a row had no effect")
        case EndReason.TIME_LIMIT:
            return Walked(rollout, "the model gave no answer")
    return Walked(rollout)
