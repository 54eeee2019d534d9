"""The base class for proxies of sessions that run in another process."""

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
    def _call_method(self, method: str, *arguments: Any) -> Any:
        """Call the session's method with the given name."""

    @abstractmethod
    def _read_attribute(self, attribute: str) -> Any:
        """Read an attribute of the session."""

    def execute(self, call: SessionCall[AnswerT]) -> AnswerT:
        """Execute a call in the other process and return its answer."""
        return cast("AnswerT", self._call_method("execute", call))

    @property
    def is_evolving(self) -> bool:
        """True while a round is running or waiting to be applied."""
        return cast(bool, self._read_attribute("is_evolving"))

    @property
    def ticket_counts(self) -> dict[str, int]:
        """Counts of tickets by event, and of dropped reports by reason."""
        return cast("dict[str, int]", self._read_attribute("ticket_counts"))

    @property
    def outstanding_tickets(self) -> tuple[Ticket, ...]:
        """Tickets that have been neither reported nor returned, oldest first."""
        return cast("tuple[Ticket, ...]", self._read_attribute("outstanding_tickets"))

    def metrics(self) -> dict[str, float]:
        """Return the curriculum's metrics."""
        return cast("dict[str, float]", self._call_method("metrics"))

    def seed_of(self, ticket: Ticket) -> int:
        """Return the env seed for a ticket's episode."""
        return cast(int, self._call_method("seed_of", ticket))

    def state_dict(self) -> dict[str, Any]:
        """Return the session's complete state as JSON."""
        return cast("dict[str, Any]", self._call_method("state_dict"))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`, invalidating all issued tickets."""
        self._call_method("load_state_dict", dict(state))
