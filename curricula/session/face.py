"""The session interface that samplers use, for local and remote sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from coevo_gym.core.evolution import RoundResult
from coevo_gym.core.seams import Later, Ticket
from coevo_gym.core.trajectory import EndReason, Group, Trajectory


class SessionFace(Protocol):
    """The interface shared by local sessions and proxies for remote sessions.

    A proxy may be used in any process, including worker processes.
    :class:`~coevo_gym.curricula.session.session.CurriculumSession` documents the calls.
    """

    @property
    def lease_s(self) -> float | None:
        """The lease time of a ticket in seconds, or None for no limit."""
        ...

    @property
    def evolving(self) -> bool:
        """True if a round is running or waiting to be applied."""
        ...

    @property
    def counts(self) -> dict[str, int]:
        """Number of tickets taken, and number of tickets closed for each reason."""
        ...

    @property
    def outstanding(self) -> tuple[Ticket, ...]:
        """The tickets that have been neither reported nor returned, oldest first."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return the curriculum's metrics."""
        ...

    def seed_of(self, ticket: Ticket) -> int:
        """Return the env seed for a ticket's episode."""
        ...

    def take(
        self, *, policy_version: int = 0, slot: str | None = None, request: str | None = None
    ) -> Ticket | Later:
        """Take a ticket for one more episode."""
        ...

    def report(self, ticket_id: str, trajectory: Trajectory) -> Group | None:
        """Report an episode; return its group if this closes the group, or None otherwise."""
        ...

    def give_back(self, ticket_id: str, reason: EndReason) -> Group | None:
        """Give back the ticket of an unfinished episode. If its group closes, return the group."""
        ...

    def renew(self, ticket_id: str) -> bool:
        """Renew a ticket's lease; return True if the ticket is still outstanding."""
        ...

    def close_spent_step(self) -> None:
        """Close an automatically opened step that has no tickets left."""
        ...

    def evolve(self) -> RoundResult | None:
        """Run the round that is due, or wait for a running one; return None if there is neither."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the full state of the stream as JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`; earlier tickets become invalid."""
        ...
