"""The record of a session's calls: leases, requests, and how tickets ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from coevo_gym.core.seams import Ticket
from coevo_gym.curricula.session.leases import Clock, Leases
from coevo_gym.curricula.session.recent import Recent

REMEMBERED = 10_000
"""Number of requests and ended tickets kept, so that calls can be repeated."""

_COUNTS = ("taken", "reported", "given_back", "lapsed", "double", "late", "unknown")
_DROPPED = {"reported": "double", "given back": "late", "lapsed": "late"}


class Callers:
    """Leases of tickets and slots, the ticket of each request, and the end of each ticket.

    Args:
        lease_s: lease time of a ticket or a slot in seconds; None for no limit.
        clock: returns the time in seconds; required for leases.
    """

    def __init__(self, lease_s: float | None, clock: Clock | None) -> None:
        self.leases, self.slots = Leases(lease_s, clock), Leases(lease_s, clock)
        self._asked: Recent[Ticket] = Recent(REMEMBERED)
        self._ended: Recent[str] = Recent(REMEMBERED)
        self._out: set[str] = set()
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> dict[str, int]:
        """Number of tickets taken, tickets ended by reason, and reports dropped."""
        return {name: self._counts[name] for name in _COUNTS}

    def known(self, request: str | None) -> Ticket | None:
        """Return the ticket issued for a request, unless its lease has expired since.

        It is also unknown if the ticket ended too long ago.
        """
        ticket = None if request is None else self._asked.get(request)
        if ticket is None or ticket.id in self._out:
            return ticket
        return ticket if self.ended(ticket.id) in ("reported", "given back") else None

    def begin(self, ticket: Ticket, slot: str | None, request: str | None) -> None:
        """Record an issued ticket."""
        self._out.add(ticket.id)
        self.leases.begin(ticket.id)
        if slot is not None:
            self.slots.begin(slot)
        if request is not None:
            self._asked.put(request, ticket)
        self._counts["taken"] += 1

    def end(self, ticket_id: str, how: str) -> None:
        """Record the end of a ticket: ``"reported"``, ``"given back"`` or ``"lapsed"``."""
        self._out.discard(ticket_id)
        self.leases.end(ticket_id)
        self._ended.put(ticket_id, how)
        self._counts[how.replace(" ", "_")] += 1

    def ended(self, ticket_id: str) -> str:
        """Return how a ticket ended recently; "" if it is outstanding or no longer known."""
        return self._ended.get(ticket_id) or ""

    def drop(self, ticket_id: str) -> str:
        """Count a report without an outstanding ticket, and return the reason it is dropped."""
        why = _DROPPED.get(self.ended(ticket_id), "unknown")
        self._counts[why] += 1
        return why

    def void(self, kept_slots: Iterable[str]) -> None:
        """Discard all requests and leases, except leases of slots with reserved places."""
        self._asked.clear()
        self._ended.clear()
        self._out.clear()
        self.leases.clear()
        self.slots.clear()
        for slot in kept_slots:
            self.slots.begin(slot)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON; requests whose ticket has ended are omitted."""
        asked = [(request, t.id) for request, t in self._asked.items() if t.id in self._out]
        return {
            "leases": self.leases.left(),
            "slots": self.slots.left(),
            "asked": dict(asked),
            "ended": dict(self._ended.items()),
            "counts": dict(self._counts),
        }

    def load_state_dict(self, state: Mapping[str, Any], out: Iterable[Ticket]) -> None:
        """Restore the state from :meth:`state_dict`.

        Args:
            state: the saved state.
            out: the outstanding tickets.
        """
        tickets = {ticket.id: ticket for ticket in out}
        self.void(())
        self._out.update(tickets)
        self.leases.restore(state["leases"])
        self.slots.restore(state["slots"])
        for request, id in state["asked"].items():
            if id in tickets:  # older states may contain tickets that ended long ago
                self._asked.put(request, tickets[id])
        for id, how in state["ended"].items():
            self._ended.put(id, how)
        self._counts = Counter(state["counts"])
