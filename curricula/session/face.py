"""What a sampler needs of a session, wherever that session is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from coevo_gym.core.evolution import RoundResult
from coevo_gym.core.seams import Later, Ticket
from coevo_gym.core.trajectory import EndReason, Group, Trajectory


@runtime_checkable
class SessionFace(Protocol):
    """A session of this process, or somebody who passes each call on to one elsewhere.

    Whoever passes on may be used in any process, those of workers included.
    :class:`~coevo_gym.curricula.session.session.CurriculumSession` says what the calls do.
    """

    @property
    def lease_s(self) -> float | None:
        """Seconds that a ticket may be out without a word; None for ever."""
        ...

    @property
    def evolving(self) -> bool:
        """Whether a round is being run, or waits to be applied."""
        ...

    @property
    def counts(self) -> dict[str, int]:
        """How many tickets were taken, and what became of them."""
        ...

    @property
    def outstanding(self) -> tuple[Ticket, ...]:
        """Tickets that are neither reported nor given back, oldest first."""
        ...

    def metrics(self) -> dict[str, float]:
        """The curriculum's numbers."""
        ...

    def seed_of(self, ticket: Ticket) -> int:
        """An env seed for a ticket's episode."""
        ...

    def take(
        self, *, policy_version: int = 0, slot: str | None = None, request: str | None = None
    ) -> Ticket | Later:
        """The right to run one more episode."""
        ...

    def report(self, ticket_id: str, trajectory: Trajectory) -> Group | None:
        """Hand in an episode; the group, if this closes it."""
        ...

    def give_back(self, ticket_id: str, reason: EndReason) -> Group | None:
        """Return a ticket whose episode will not be finished; the group, if this closes it."""
        ...

    def renew(self, ticket_id: str) -> bool:
        """Begin a ticket's lease anew; whether it is still out."""
        ...

    def close_spent_step(self) -> None:
        """Close a step that opened by itself if no ticket of it is left."""
        ...

    def evolve(self) -> RoundResult | None:
        """Run the round that is due, or wait for the one under way; None if there is none."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that the stream depends on, as JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; tickets issued before are void."""
        ...
