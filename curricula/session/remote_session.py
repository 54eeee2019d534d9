"""The base class of sessions that live in another process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, cast

from coevo_gym.core.seams import Ticket
from coevo_gym.curricula.session.session_calls import AnswerT, SessionCall, TaskSession


class RemoteSession(TaskSession):
    """A proxy that forwards each call to a session in another process.

    Subclasses implement the transport and set ``lease_s``.
    """

    @abstractmethod
    def _call(self, method: str, *arguments: Any) -> Any:
        """Call the session's method with the given name."""

    @abstractmethod
    def _read(self, attribute: str) -> Any:
        """Read an attribute of the session."""

    def apply(self, call: SessionCall[AnswerT]) -> AnswerT:
        """Execute a call in the other process and return its answer."""
        return cast("AnswerT", self._call("apply", call))

    @property
    def evolving(self) -> bool:
        """True while a round is running or waiting to be applied."""
        return cast(bool, self._read("evolving"))

    @property
    def counts(self) -> dict[str, int]:
        """Counts of the tickets taken, in total and by outcome."""
        return cast("dict[str, int]", self._read("counts"))

    @property
    def outstanding(self) -> tuple[Ticket, ...]:
        """Tickets that have been neither reported nor returned, oldest first."""
        return cast("tuple[Ticket, ...]", self._read("outstanding"))

    def metrics(self) -> dict[str, float]:
        """Return the curriculum's metrics."""
        return cast("dict[str, float]", self._call("metrics"))

    def seed_of(self, ticket: Ticket) -> int:
        """Return an env seed for a ticket's episode."""
        return cast(int, self._call("seed_of", ticket))

    def close_spent_step(self) -> None:
        """Close the current step if it was opened automatically and has no tickets left."""
        self._call("close_spent_step")

    def state_dict(self) -> dict[str, Any]:
        """Return the session's complete state as JSON."""
        return cast("dict[str, Any]", self._call("state_dict"))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`, invalidating all issued tickets."""
        self._call("load_state_dict", dict(state))
