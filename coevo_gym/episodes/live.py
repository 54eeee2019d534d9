"""Episodes in progress, each with its env and its agent's answers so far."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Generic, cast

import gymnasium as gym

from coevo_gym.core.errors import BudgetSpent, EnvBackendError, ModelError
from coevo_gym.core.evolution import digest
from coevo_gym.core.seams import Act, ActStream, Agent, StreamingAgent
from coevo_gym.core.spend import NO_USAGE
from coevo_gym.core.trajectory import EndReason, TokenDecision, View
from coevo_gym.core.transcript import RoleAndText
from coevo_gym.core.waiting import report_activity
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes.episode import Episode, Fault, Finished, Lost, Outcome, RecordT
from coevo_gym.episodes.views import Seen

SELDOM = 1_000
"""Middle-generation collections between two full collections; Python's default is 10."""


@contextmanager
def make_full_gc_rare() -> Iterator[None]:
    """Make full garbage collections less frequent during a ``with`` block.

    Envs and policies keep hundreds of thousands of objects and drop many others, which are freed at
    once because they are not in a cycle. Python counts the dropped objects as if they still
    existed, and therefore scans all remaining objects again and again. On ALFWorld this took a
    third of a run's time (CPython 3.11, see ``bench/full_collections.py``). Young cycles are
    collected as before.
    """
    first, second, third = gc.get_threshold()
    gc.set_threshold(first, second, max(third, SELDOM))
    try:
        yield
    finally:
        gc.set_threshold(first, second, third)


_LOG = logging.getLogger(__name__)


class LiveEpisode(Generic[RecordT]):
    """An episode in progress in its own env. No other code may use the env until the episode ends.

    Attributes:
        usage: model usage in the episode so far.
        asked_at: time of the latest request to a stream of responses, in seconds of the monotonic
            clock.
    """

    def __init__(self, index: int, episode: Episode[RecordT], env: gym.Env[str, str]) -> None:
        self.index = index
        self.env = env
        self._episode = episode
        self._acts: list[Act] = []
        self._messages: dict[RoleAndText, RoleAndText] = {}
        self.usage = NO_USAGE
        self.asked_at = 0.0
        self._seen = Seen(episode.show, digest([episode.task.id, episode.seed])[:16])

    @property
    def view(self) -> View:
        """The agent's current view.

        It contains the env's output, shown through the episode's interface; the texts that the
        agent was shown, its answers and its tokens so far; and the episode's cues.
        """
        return self._seen.view

    @property
    def env_steps(self) -> int:
        """The number of env steps taken so far."""
        return len(self._acts)

    def begin(self) -> Lost | None:
        """Reset the env to the start of the task. Return an outcome only if the reset fails."""
        try:
            self.env.reset(seed=self._episode.seed, options={"task": self._episode.task})
        except EnvBackendError as error:
            return self._lose(EndReason.WORKER_LOST, error)
        self._seen.record(self._inner.view)
        return None

    def request_act(self, responses: ActStream) -> None:
        """Request the agent's next response, with draws that belong to this episode and step."""
        self.asked_at = monotonic()
        responses.add(self.index, self.view, (self._episode.seed, self.env_steps))

    def step(self, act: Act) -> Outcome[RecordT] | None:
        """Apply the agent's response, and return the outcome if the episode ends.

        Raises:
            ConfigError: if a wrapper of the env repeats or skips the step.
        """
        if act.end is not None and act.end.is_lost:
            kind = BudgetSpent if act.end is EndReason.CAPPED else ModelError
            return self._lose(act.end, kind(act.said))
        if act.usage is not NO_USAGE:
            self.usage += act.usage
        try:
            if act.end is not None:
                self._inner.cut(act.end)
                return self._finish()
            self._acts.append(self._share_messages(act))
            began = monotonic()
            _, _, terminated, truncated, info = self.env.step(act.text)
            self._acts[-1] = self._acts[-1]._replace(env_s=monotonic() - began)
            if terminated or truncated:
                self._inner.end_from_outside(info)
                return self._finish()
        except EnvBackendError as error:
            return self._lose(EndReason.WORKER_LOST, error)
        decision = act.decision if isinstance(act.decision, TokenDecision) else None
        # The env stores none of these.
        self._seen.record(self._inner.view, act.said, decision, act.memory)
        return None

    def _share_messages(self, act: Act) -> Act:
        """Return the response with messages shared with earlier ones, which each chat repeats."""
        if act.call is None:
            return act
        shared = self._messages
        messages = tuple(shared.setdefault(message, message) for message in act.call.messages)
        return act._replace(call=act.call._replace(messages=messages))

    @property
    def begins_alone(self) -> bool:
        """True if episodes in different threads must begin one at a time."""
        return self._inner.begins_alone

    @property
    def _inner(self) -> TaskEnv:
        return cast(TaskEnv, self.env.unwrapped)

    def _finish(self) -> Finished[RecordT]:
        view_texts = self._seen.texts[: len(self._acts)]
        record = self._episode.make_record(self._inner, self._acts, view_texts)
        cut = sum(act.cut for act in self._acts)
        return Finished(self.index, record, len(self._acts), self.usage, cut)

    def _lose(self, reason: EndReason, error: Fault) -> Lost:
        if reason not in (EndReason.ABANDONED, EndReason.CAPPED):
            name, step = self._episode.task.name, len(self._acts)
            _LOG.warning("episode lost task=%s step=%d error=%s", name, step, error)
        return Lost(self.index, reason, error, len(self._acts))


def ask_agent(agent: Agent, episodes: Sequence[LiveEpisode[RecordT]]) -> Sequence[Act]:
    """Request the agent's next response in each episode, and report the step and token counts."""
    report_activity(0, 0)
    began = monotonic()
    acts = agent.act([episode.view for episode in episodes])
    acts = [_with_wall_time(act, began) for act in acts]
    _report_acts(acts)
    return acts


def step_stream(
    responses: ActStream, live: Mapping[int, LiveEpisode[RecordT]]
) -> list[tuple[LiveEpisode[RecordT], Act]]:
    """Advance all requested responses by one token, and return the episodes with a response.

    Args:
        responses: the agent's responses.
        live: the live episodes by index.
    """
    report_activity(0, 0)
    ready = [(live[key], _with_wall_time(act, live[key].asked_at)) for key, act in responses.step()]
    if ready:
        _report_acts([act for _, act in ready])
    return ready


def stream_of(agent: Agent) -> AbstractContextManager[ActStream] | None:
    """Return a context manager for an agent's stream of responses; None if it has none."""
    return agent.stream() if isinstance(agent, StreamingAgent) else None


def _with_wall_time(act: Act, asked_at: float) -> Act:
    """Add the seconds that a response took, unless the policy measured them."""
    return act if act.answer_s is not None else act._replace(answer_s=monotonic() - asked_at)


def _report_acts(acts: Sequence[Act]) -> None:
    steps = sum(act.end is None for act in acts)
    report_activity(steps, sum(act.usage.tokens for act in acts if act.usage is not NO_USAGE))
