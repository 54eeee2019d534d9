"""Interface of a journaled session for envs in the same process."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from coevo_gym.core.errors import EnvBackendError
from coevo_gym.core.seams import Later, Ticket
from coevo_gym.core.trajectory import EndReason, Trajectory
from coevo_gym.serve.session import JournaledSession

PATIENCE_S = 3600.0
"""Maximum seconds to wait for a ticket while a round looks for the first tasks."""
POLL_S = 0.5


class LocalSession:
    """A :class:`~coevo_gym.curricula.session.face.SessionFace` for a session in this process.

    Its episodes end with the process, so their tickets are returned when the session is opened
    again. The session runs its rounds by itself; :meth:`take` waits for the first tasks.

    Args:
        session: session to practise.
        stop: event that ends such a wait.
    """

    def __init__(self, session: JournaledSession, stop: threading.Event) -> None:
        self._session, self._stop = session, stop

    @property
    def lease_s(self) -> float:
        """Seconds after which a ticket without a renewal lapses."""
        return self._session.lease_s

    @property
    def evolving(self) -> bool:
        """True while a round is running or waiting for a retry."""
        return self._session.evolving

    @property
    def counts(self) -> dict[str, int]:
        """Number of tickets taken, and number of tickets by outcome."""
        return self._session.counts

    @property
    def outstanding(self) -> tuple[Ticket, ...]:
        """Tickets that are neither reported nor returned, oldest first."""
        return self._session.outstanding

    def metrics(self) -> dict[str, float]:
        """Return the curriculum's metrics."""
        return self._session.metrics()

    def seed_of(self, ticket: Ticket) -> int:
        """Return an env seed for a ticket's episode."""
        return self._session.seed_of(ticket)

    def take(
        self, *, policy_version: int = 0, slot: str | None = None, request: str | None = None
    ) -> Ticket:
        """Take a ticket for one episode, waiting until one is available.

        Raises:
            EnvBackendError: if no ticket is available in time, or the wait is stopped.
        """
        begun = time.monotonic()
        while True:
            found = self._session.take(
                policy_version=policy_version, slot=slot, request=request, mine=True
            )
            if not isinstance(found, Later):
                return found
            waited = time.monotonic() - begun
            if waited >= PATIENCE_S or self._stop.wait(POLL_S):
                raise EnvBackendError(
                    f"No episode is available after {waited:.0f} s. {found.reason}"
                )

    def report(self, ticket_id: str, trajectory: Trajectory) -> None:
        """Report an episode; the group that it closes is not returned."""
        self._session.report(ticket_id, trajectory)

    def give_back(self, ticket_id: str, reason: EndReason) -> None:
        """Return a ticket whose episode will not be finished."""
        self._session.give_back(ticket_id, reason)

    def renew(self, ticket_id: str) -> bool:
        """Renew a ticket's lease; return True if the ticket is still out."""
        return self._session.renew(ticket_id)

    def close_spent_step(self) -> None:
        """Do nothing; the next take closes the step."""

    def evolve(self) -> None:
        """Do nothing; rounds run in a thread of the session."""

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state of the task stream as JSON."""
        return self._session.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; tickets issued before are void."""
        self._session.load_state_dict(state)
