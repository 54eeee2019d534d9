"""What a session remembers of those who call it: leases, requests, and how tickets ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from coevo_gym.core.seams import Ticket
from coevo_gym.curricula.session.leases import Clock, Leases
from coevo_gym.curricula.session.recent import Recent

REMEMBERED = 10_000
"""Requests and ended tickets that are remembered, so that calls may be repeated."""

_COUNTS = ("taken", "reported", "given_back", "lapsed", "double", "late", "unknown")
_DROPPED = {"reported": "double", "given back": "late", "lapsed": "late"}


class Callers:
    """The leases of tickets and slots, which request got which ticket, and what became of it.

    Args:
        lease_s: seconds that a ticket or a slot may be out without a word; None for ever.
        clock: tells the time in seconds; needed for leases.
    """

    def __init__(self, lease_s: float | None, clock: Clock | None) -> None:
        self.leases, self.slots = Leases(lease_s, clock), Leases(lease_s, clock)
        self._asked: Recent[Ticket] = Recent(REMEMBERED)
        self._ended: Recent[str] = Recent(REMEMBERED)
        self._out: set[str] = set()
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> dict[str, int]:
        """How many tickets were taken, and how they ended; how many reports were dropped."""
        return {name: self._counts[name] for name in _COUNTS}

    def known(self, request: str | None) -> Ticket | None:
        """The ticket that a request was given, unless its lease has run out since.

        Nor is it known if the ticket ended too long ago to say how.
        """
        ticket = None if request is None else self._asked.get(request)
        if ticket is None or ticket.id in self._out:
            return ticket
        return ticket if self.ended(ticket.id) in ("reported", "given back") else None

    def begin(self, ticket: Ticket, slot: str | None, request: str | None) -> None:
        """A ticket is given out."""
        self._out.add(ticket.id)
        self.leases.begin(ticket.id)
        if slot is not None:
            self.slots.begin(slot)
        if request is not None:
            self._asked.put(request, ticket)
        self._counts["taken"] += 1

    def end(self, ticket_id: str, how: str) -> None:
        """A ticket is ``"reported"``, ``"given back"`` or ``"lapsed"``."""
        self._out.discard(ticket_id)
        self.leases.end(ticket_id)
        self._ended.put(ticket_id, how)
        self._counts[how.replace(" ", "_")] += 1

    def ended(self, ticket_id: str) -> str:
        """How a ticket ended lately; "" if it is out, or not known any more."""
        return self._ended.get(ticket_id) or ""

    def drop(self, ticket_id: str) -> str:
        """Count a report of a ticket that is not out; says as what."""
        why = _DROPPED.get(self.ended(ticket_id), "unknown")
        self._counts[why] += 1
        return why

    def void(self, kept_slots: Iterable[str]) -> None:
        """Forget who asked for what: only slots that places are kept for have a lease."""
        self._asked.clear()
        self._ended.clear()
        self._out.clear()
        self.leases.clear()
        self.slots.clear()
        for slot in kept_slots:
            self.slots.begin(slot)

    def state_dict(self) -> dict[str, Any]:
        """All of it as JSON; requests whose ticket has ended are left out."""
        asked = [(request, t.id) for request, t in self._asked.items() if t.id in self._out]
        return {
            "leases": self.leases.left(),
            "slots": self.slots.left(),
            "asked": dict(asked),
            "ended": dict(self._ended.items()),
            "counts": dict(self._counts),
        }

    def load_state_dict(self, state: Mapping[str, Any], out: Iterable[Ticket]) -> None:
        """Restore :meth:`state_dict`.

        Args:
            state: what it gave.
            out: the tickets that are out.
        """
        tickets = {ticket.id: ticket for ticket in out}
        self.void(())
        self._out.update(tickets)
        self.leases.restore(state["leases"])
        self.slots.restore(state["slots"])
        for request, id in state["asked"].items():
            if id in tickets:  # older states may name some that ended long ago
                self._asked.put(request, tickets[id])
        for id, how in state["ended"].items():
            self._ended.put(id, how)
        self._counts = Counter(state["counts"])
