"""A runner for many concurrent episodes, either in lockstep or each at its own pace.

An episode whose engine fails, or whose model does not answer, is data, not a crash: the other
episodes continue, and its outcome contains the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import gymnasium as gym

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import digest
from coevo_gym.core.seams import ActStream, Agent, Guidance, Ticket
from coevo_gym.core.spend import NO_USAGE, Usage
from coevo_gym.core.trajectory import EndReason, Trajectory
from coevo_gym.episodes.env_pool import EnvPool
from coevo_gym.episodes.episode import (
    AnswerCounts,
    Episode,
    Fault,
    Finished,
    Lost,
    Outcome,
    RecordT,
    episode_of,
)
from coevo_gym.episodes.live import LiveEpisode, ask_agent, step_stream, stream_of
from coevo_gym.episodes.stream import EpisodeStream

Mode = Literal["lock_step", "async"]
ResultT = TypeVar("ResultT")
_Take = Callable[[], gym.Env[str, str]]


class Admission:
    """A rule for when an episode may begin. By default, it may begin if an env is free.

    Attributes:
        closed: the reason why no more episodes begin; None while they do.
    """

    closed: BaseException | None = None

    def allows(self, live: Sequence[Usage]) -> bool:
        """Return True if another episode may begin. Called before each step of the live episodes.

        Args:
            live: model usage so far of each live episode. If no episode is live and none may begin,
                the run ends.
        """
        return self.closed is None

    def record_usage(self, usage: Usage) -> None:
        """Record the model usage of a finished episode."""


class Runner:
    """A runner that runs at most ``envs.max_envs`` episodes at a time.

    In lockstep mode, the agent acts in all live episodes together, and every episode takes one step
    before any takes the next. In ``"async"`` mode, each episode continues as soon as it can
    (:class:`~coevo_gym.episodes.stream.EpisodeStream`): engines run in their own threads, no
    episode waits for another's engine, and the agent answers batches of the waiting episodes in the
    thread that uses the runner. The mode does not affect an episode's outcome, as long as the
    agent's acts depend on the view alone. An agent that samples its batches from one random stream
    samples different acts.

    An agent that streams its responses, such as a language model in this process, never waits: an
    episode whose answer ends takes its step, and its next prompt joins the running batch. In
    lockstep mode with envs in this process, the order in which prompts join follows from the
    sampled tokens alone, so a run repeats exactly. In ``"async"`` mode, or with worker processes,
    it depends on how long the engines take: the draws are the same, but log-probabilities differ
    in their last bits, which can change a token.

    Args:
        envs: pool of envs to run episodes in.
        mode: ``"lock_step"`` or ``"async"``.
        admission: rule for when episodes begin; None to begin one whenever an env is free.

    Raises:
        ConfigError: if the mode is unknown.

    Example:
        >>> import coevo_gym, gymnasium as gym
        >>> from coevo_gym.agents.scripted import ScriptedAgent
        >>> from coevo_gym.episodes import EnvPool, EvalEpisode, Runner
        >>> envs = EnvPool(lambda: gym.make("CoEvolve-WebShop-v0"))
        >>> task = coevo_gym.tasks("webshop")[0]
        >>> for outcome in Runner(envs).run([EvalEpisode(task, 0)], ScriptedAgent(task.solution)):
        ...     print(outcome.index, outcome.record.success)
        0 True
    """

    def __init__(
        self, envs: EnvPool, mode: Mode = "lock_step", admission: Admission | None = None
    ) -> None:
        if mode not in ("lock_step", "async"):
            raise ConfigError(f"mode must be 'lock_step' or 'async', got {mode!r}")
        self.envs = envs
        self.mode = mode
        self.admission = admission or Admission()

    def run(self, episodes: Sequence[Episode[RecordT]], agent: Agent) -> Iterator[Outcome[RecordT]]:
        """Run episodes and yield each outcome as its episode ends.

        Close the iterator if you stop early; this ends the episodes that are still running.

        Returns:
            The outcome of each episode, finished or lost, in the order in which episodes end;
            ``index`` is the episode's index in ``episodes``.
        """
        if self.mode == "async":
            return self._run_async(episodes, agent)
        stream = stream_of(agent)
        if stream is None:
            return self._run_in_lock_step(episodes, agent)
        if self.envs.workers is not None:
            return self._run_async(episodes, agent)
        return self._run_in_token_order(episodes, stream)

    def _run_in_lock_step(
        self, episodes: Sequence[Episode[RecordT]], agent: Agent
    ) -> Iterator[Outcome[RecordT]]:
        waiting = deque(enumerate(episodes))
        live: list[LiveEpisode[RecordT]] = []
        with self.envs.lend_envs() as take:
            while waiting or live:
                while begun := self._admit(waiting, live, take):
                    jobs = [episode.begin for episode in begun]
                    for place, lost in self.envs.run_jobs([one.env for one in begun], jobs):
                        if lost is None:
                            live.append(begun[place])
                        else:
                            yield lost
                if not live:
                    return
                acts = ask_agent(agent, live)
                asked, live = live, []
                steps = [partial(one.step, act) for one, act in zip(asked, acts, strict=True)]
                for place, outcome in self.envs.run_jobs([one.env for one in asked], steps):
                    if outcome is None:
                        live.append(asked[place])
                        continue
                    yield self._release(asked[place], outcome)

    def _run_in_token_order(
        self, episodes: Sequence[Episode[RecordT]], stream: AbstractContextManager[ActStream]
    ) -> Iterator[Outcome[RecordT]]:
        waiting = deque(enumerate(episodes))
        live: dict[int, LiveEpisode[RecordT]] = {}
        with self.envs.lend_envs() as take, stream as responses:
            while waiting or live:
                while begun := self._admit(waiting, [*live.values()], take):
                    for episode in begun:
                        if (lost := episode.begin()) is not None:
                            yield lost
                            continue
                        live[episode.index] = episode
                        episode.request_act(responses)
                if not live:
                    return
                for episode, act in step_stream(responses, live):
                    if (outcome := episode.step(act)) is None:
                        episode.request_act(responses)
                        continue
                    del live[episode.index]
                    yield self._release(episode, outcome)

    def _release(
        self, episode: LiveEpisode[RecordT], outcome: Outcome[RecordT]
    ) -> Outcome[RecordT]:
        """Return the env of an ended episode to the pool, unless its engine failed."""
        if not (isinstance(outcome, Lost) and outcome.reason is EndReason.WORKER_LOST):
            self.envs.put(episode.env)
        return outcome

    def _admit(
        self,
        waiting: deque[tuple[int, Episode[RecordT]]],
        live: Sequence[LiveEpisode[RecordT]],
        take: _Take,
    ) -> list[LiveEpisode[RecordT]]:
        """Take the episodes that may begin now off the queue, and give each an env."""
        usages = [episode.usage for episode in live]
        begun = []
        while self.admission.allows(usages) and waiting and len(usages) < self.envs.max_envs:
            begun.append(LiveEpisode(*waiting.popleft(), take()))
            usages.append(NO_USAGE)
        return begun

    def _run_async(
        self, episodes: Sequence[Episode[RecordT]], agent: Agent
    ) -> Iterator[Outcome[RecordT]]:
        waiting = deque(enumerate(episodes))
        with EpisodeStream[RecordT](self.envs, agent) as stream:
            while True:
                while waiting and stream.has_room and self.admission.allows(stream.live_usages):
                    stream.begin(*waiting.popleft())
                if (outcome := stream.next()) is None:
                    return
                yield outcome


def run_one(episode: Episode[RecordT], agent: Agent, envs: EnvPool) -> Outcome[RecordT]:
    """Run a single episode and return its outcome. The agent may support one episode only."""
    (outcome,) = Runner(envs).run([episode], agent)
    return outcome


class Rollout(NamedTuple):
    """The results of running one training episode per ticket.

    Attributes:
        trajectories: one per ticket, in order; None for a lost episode.
        lost: lost episodes, by position.
        env_steps: number of env steps taken, including those of lost episodes.
        answer_counts: counts of a language model's answers in each finished episode.
    """

    trajectories: tuple[Trajectory | None, ...]
    lost: dict[int, Lost]
    env_steps: int
    answer_counts: tuple[AnswerCounts, ...] = ()

    @property
    def faults(self) -> dict[int, Fault]:
        """The errors that caused episodes to be lost, keyed by episode index."""
        return {index: lost.error for index, lost in self.lost.items()}


def run_rollout(
    tickets: Sequence[Ticket],
    agent: Agent,
    envs: EnvPool,
    *,
    policy_version: int = 0,
    seed: int = 0,
    mode: Mode = "lock_step",
    guidance: Sequence[Guidance] | None = None,
) -> Rollout:
    """Run one training episode for each ticket.

    Args:
        tickets: tickets to run; their tasks must be training tasks.
        agent: the agent that acts.
        envs: pool of envs to run episodes in.
        policy_version: version of the policy behind ``agent``, stored in the trajectories.
        seed: base seed; combined with the ticket's id, it seeds the episode's env.
        mode: see :class:`Runner`.
        guidance: guidance for each ticket's episode; None for no guidance.

    Raises:
        SplitLeakError: if a ticket's task is not a training task.
        ValueError: if ``guidance`` does not have one item per ticket.
    """
    guides = [Guidance()] * len(tickets) if guidance is None else guidance
    episodes = [
        episode_of(ticket, episode_seed(seed, ticket.id), policy_version, guided)
        for ticket, guided in zip(tickets, guides, strict=True)
    ]
    outcomes = list(Runner(envs, mode).run(episodes, agent))
    ended = [outcome for outcome in outcomes if isinstance(outcome, Finished)]
    finished = {outcome.index: outcome.record for outcome in ended}
    lost = {outcome.index: outcome for outcome in outcomes if isinstance(outcome, Lost)}
    return Rollout(
        tuple(finished.get(index) for index in range(len(tickets))),
        {index: lost[index] for index in sorted(lost)},
        sum(outcome.env_steps for outcome in outcomes),
        tuple(outcome.answer_counts for outcome in ended if outcome.usage.calls),
    )


def episode_seed(seed: int, name: str) -> int:
    """Return the seed for one episode. Equal arguments give equal seeds in every process."""
    return int(digest([seed, name]), 16) % 2**31
