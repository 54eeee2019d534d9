"""Many episodes in lock step, in one process.

All live episodes ask the agent at once, so a policy answers in batches. An episode whose engine
fails, or whose model gives no answer, is data, not a crash: its siblings go on, and its place in
the result holds the error.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar, cast

import gymnasium as gym

from coevo_gym.core.errors import EnvBackendError, ModelError, SplitLeakError
from coevo_gym.core.evolution import digest
from coevo_gym.core.seams import Act, Agent, Ticket
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import (
    EndReason,
    EvalTrajectory,
    TokenDecision,
    Trajectory,
    View,
)
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes.pool import EnvPool

_LOG = logging.getLogger(__name__)
RecordT = TypeVar("RecordT", Trajectory, EvalTrajectory)
Fault = EnvBackendError | ModelError
"""Why an episode was lost: its engine failed, or the model behind its agent."""


class Rollout(NamedTuple):
    """The episodes of some tickets.

    Attributes:
        trajectories: one per ticket, in order; None where the episode was lost.
        faults: the errors of those that failed, by position.
        env_steps: env steps taken, failed episodes included.
    """

    trajectories: tuple[Trajectory | None, ...]
    faults: dict[int, Fault]
    env_steps: int


def rollout(
    tickets: Sequence[Ticket],
    agent: Agent,
    envs: EnvPool,
    *,
    policy_version: int = 0,
    seed: int = 0,
) -> Rollout:
    """Run one training episode for each ticket.

    Args:
        tickets: what to run; their tasks must be training tasks.
        agent: who acts.
        envs: where.
        policy_version: version of the policy behind ``agent``, put into the trajectories.
        seed: with the ticket's id, it seeds the episode's env.

    Raises:
        SplitLeakError: if a ticket's task is not a training task.
    """
    for ticket in tickets:
        if ticket.task.split is not Split.TRAIN:
            raise SplitLeakError(
                f"{ticket.task.name} is a {ticket.task.split} task; train on training tasks only. "
                "Use evaluate() for the others."
            )

    def record(env: TaskEnv, index: int, acts: Sequence[Act]) -> Trajectory:
        group_id = tickets[index].group_id
        return env.trajectory(group_id=group_id, policy_version=policy_version, acts=acts)

    episodes = [(ticket.task, episode_seed(seed, ticket.id)) for ticket in tickets]
    outcomes, env_steps = play(episodes, agent, envs, record)
    faults = {i: o for i, o in enumerate(outcomes) if isinstance(o, Fault)}
    trajectories = tuple(o if isinstance(o, Trajectory) else None for o in outcomes)
    return Rollout(trajectories, faults, env_steps)


def episode_seed(seed: int, name: str) -> int:
    """A seed for one episode, the same in every process."""
    return int(digest([seed, name]), 16) % 2**31


def play(
    episodes: Sequence[tuple[Task, int]],
    agent: Agent,
    envs: EnvPool,
    record: Callable[[TaskEnv, int, Sequence[Act]], RecordT],
    on_done: Callable[[int], None] | None = None,
) -> tuple[list[RecordT | Fault], int]:
    """Run episodes in lock step; at most ``envs.max_envs`` of them live at once.

    Args:
        episodes: task and env seed of each.
        agent: who acts.
        envs: where.
        record: makes the record of a finished episode from its env, its position and its acts.
        on_done: told how many episodes are over, whenever that has changed.

    Returns:
        A record, or what it was lost to, for each episode in order; and the env steps taken.
    """
    outcomes: dict[int, RecordT | Fault] = {}
    waiting = deque(enumerate(episodes))
    live: list[_Live] = []
    env_steps = 0
    with envs.open() as take:
        while waiting or live:
            while waiting and len(live) < envs.max_envs:
                index, (task, seed) = waiting.popleft()
                episode = _Live(index, task, take())
                error = episode.begin(seed)
                if error is None:
                    live.append(episode)
                else:
                    outcomes[index] = error
            if not live:
                continue
            acts = agent.act([episode.view for episode in live])
            still: list[_Live] = []
            for episode, act in zip(live, acts, strict=True):
                env_steps += act.end is None
                done, error = episode.step(act)
                if error is not None:
                    outcomes[episode.index] = error
                elif done:
                    outcomes[episode.index] = record(episode.inner, episode.index, episode.acts)
                    envs.put(episode.env)
                else:
                    still.append(episode)
            if on_done and len(still) < len(live):
                on_done(len(outcomes))
            live = still
    return [outcomes[index] for index in range(len(episodes))], env_steps


def remember(view: View, acts: Sequence[Act]) -> View:
    """Add what an agent said and sampled to its view, which holds only what the env knows.

    Args:
        view: what the env shows.
        acts: the agent's earlier acts in the episode, one per turn of the view's history.
    """
    turns = tuple(
        turn._replace(said=act.said, decision=act.decision)
        if isinstance(act.decision, TokenDecision)
        else turn._replace(said=act.said)
        for turn, act in zip(view.history, acts, strict=True)
    )
    return replace(view, history=turns)


@dataclass(slots=True)
class _Live:
    """An episode under way."""

    index: int
    task: Task
    env: gym.Env[str, str]
    acts: list[Act] = field(default_factory=list)

    @property
    def inner(self) -> TaskEnv:
        return cast(TaskEnv, self.env.unwrapped)

    @property
    def view(self) -> View:
        """What the env shows, with what the agent itself said and sampled so far."""
        return remember(self.inner.view, self.acts)

    def begin(self, seed: int) -> Fault | None:
        try:
            self.env.reset(seed=seed, options={"task": self.task})
        except EnvBackendError as error:
            return self._fault(error)
        return None

    def step(self, act: Act) -> tuple[bool, Fault | None]:
        if act.end is EndReason.MODEL_LOST:
            return True, self._fault(ModelError(act.said))
        try:
            if act.end is not None:
                self.inner.cut(act.end)
                return True, None
            self.acts.append(act)
            _, _, terminated, truncated, info = self.env.step(act.text)
            done = bool(terminated or truncated)
            if done:
                self.inner.end_from_outside(info)
        except EnvBackendError as error:
            return True, self._fault(error)
        return done, None

    def _fault(self, error: Fault) -> Fault:
        _LOG.warning("episode lost task=%s step=%d error=%s", self.task.name, len(self.acts), error)
        return error
