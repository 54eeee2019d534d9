"""A kept session, as envs that run in its own process practise it."""

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
"""Longest wait for a ticket, while the first tasks are still looked for."""
POLL_S = 0.5


class LocalSession:
    """The :class:`~coevo_gym.curricula.session.face.SessionFace` of a session of this process.

    Its episodes end with the process, so that their tickets are given back when the session is
    opened again. The session runs its rounds by itself: :meth:`take` waits for the first tasks.

    Args:
        session: what is practised.
        stop: ends such a wait when it is set.
    """

    def __init__(self, session: JournaledSession, stop: threading.Event) -> None:
        self._session, self._stop = session, stop

    @property
    def lease_s(self) -> float:
        """Seconds that a ticket may be out without a word."""
        return self._session.lease_s

    @property
    def evolving(self) -> bool:
        """Whether a round is being run, or waits to be tried again."""
        return self._session.evolving

    @property
    def counts(self) -> dict[str, int]:
        """How many tickets were taken, and what became of them."""
        return self._session.counts

    @property
    def outstanding(self) -> tuple[Ticket, ...]:
        """Tickets that are neither reported nor given back, oldest first."""
        return self._session.outstanding

    def metrics(self) -> dict[str, float]:
        """The curriculum's numbers."""
        return self._session.metrics()

    def seed_of(self, ticket: Ticket) -> int:
        """An env seed for a ticket's episode."""
        return self._session.seed_of(ticket)

    def take(
        self, *, policy_version: int = 0, slot: str | None = None, request: str | None = None
    ) -> Ticket:
        """The right to run one more episode, as soon as there is one.

        Raises:
            EnvBackendError: if there is none in time, or the wait is stopped.
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
                    f"There is no episode to begin after {waited:.0f} s. {found.reason}"
                )

    def report(self, ticket_id: str, trajectory: Trajectory) -> None:
        """Hand in an episode; which group it closes is the session's to know."""
        self._session.report(ticket_id, trajectory)

    def give_back(self, ticket_id: str, reason: EndReason) -> None:
        """Return a ticket whose episode will not be finished."""
        self._session.give_back(ticket_id, reason)

    def renew(self, ticket_id: str) -> bool:
        """Begin a ticket's lease anew; whether it is still out."""
        return self._session.renew(ticket_id)

    def close_spent_step(self) -> None:
        """Nothing: the next take closes it."""

    def evolve(self) -> None:
        """Nothing: rounds run in a thread of the session."""

    def state_dict(self) -> dict[str, Any]:
        """All that the stream depends on, as JSON."""
        return self._session.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; tickets issued before are void."""
        self._session.load_state_dict(state)
