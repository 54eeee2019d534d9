"""Agents that end an episode by a rule, and otherwise let another agent act."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from coevo_gym.core.seams import Act, ActStream, Agent
from coevo_gym.core.trajectory import View
from coevo_gym.episodes.live import stream_of


class StoppingAgent(ABC):
    """An agent that ends an episode by a rule, and otherwise lets another agent act.

    Args:
        agent: the other agent. It is not asked about episodes that end.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    @abstractmethod
    def stop(self, view: View) -> Act | None:
        """Return the response that ends the episode, or None if the other agent acts."""

    def revise(self, act: Act) -> Act:
        """Return what becomes of the other agent's response."""
        return act

    def act(self, views: Sequence[View]) -> list[Act]:
        """Return one response per view; see :class:`~coevo_gym.core.seams.Agent`."""
        stops = [self.stop(view) for view in views]
        going = [view for view, stop in zip(views, stops, strict=True) if stop is None]
        acts = iter(self._agent.act(going) if going else ())
        return [self.revise(next(acts)) if stop is None else stop for stop in stops]

    def stream(self) -> AbstractContextManager[ActStream] | None:
        """Return a stream of responses if the other agent has one; None otherwise."""
        stream = stream_of(self._agent)
        return None if stream is None else self._stream(stream)

    @contextmanager
    def _stream(self, stream: AbstractContextManager[ActStream]) -> Iterator[ActStream]:
        with stream as responses:
            yield _StoppingStream(self, responses)


class _StoppingStream:
    """Responses of a stopping agent; see :meth:`StoppingAgent.stream`."""

    def __init__(self, agent: StoppingAgent, responses: ActStream) -> None:
        self._agent, self._responses = agent, responses
        self._stops: list[tuple[int, Act]] = []

    def __len__(self) -> int:
        return len(self._stops) + len(self._responses)

    def add(self, key: int, view: View, seed: tuple[int, ...]) -> None:
        stop = self._agent.stop(view)
        if stop is None:
            self._responses.add(key, view, seed)
        else:
            self._stops.append((key, stop))

    def step(self) -> list[tuple[int, Act]]:
        stops, self._stops = self._stops, []
        acts = self._responses.step() if len(self._responses) else []
        return stops + [(key, self._agent.revise(act)) for key, act in acts]
