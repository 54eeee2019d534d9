"""Records of a session's leases, requests and closed tickets."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import Any, TypeVar

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import Ticket
from coevo_gym.curricula.saved import Count, Finite, validate

AnswerT = TypeVar("AnswerT")


class Recent(OrderedDict[str, AnswerT]):
    """A cache that keeps only the most recent answers, keyed by name.

    Args:
        most: maximum number of answers to keep.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def put(self, name: str, answer: AnswerT) -> None:
        """Store an answer, and discard the oldest answer if there are too many."""
        self[name] = answer
        self.move_to_end(name)
        if len(self) > self.most:
            self.popitem(last=False)


Clock = Callable[[], float]
"""A function that returns monotonic time in seconds, such as ``time.monotonic``."""


class Leases:
    """Named leases that all have the same duration.

    Args:
        seconds: duration of each lease; None for leases that never expire.
        clock: returns the time in seconds; required unless ``seconds`` is None.

    Raises:
        ConfigError: if ``seconds`` is not positive, or is given without a clock.
    """

    def __init__(self, seconds: float | None, clock: Clock | None) -> None:
        if seconds is not None and not seconds > 0:
            raise ConfigError(f"lease_s must be positive, got {seconds!r}.")
        if seconds is not None and clock is None:
            raise ConfigError(
                "Leases need a clock. Pass clock=time.monotonic together with lease_s."
            )
        self._seconds, self._clock = seconds, clock
        self._until: dict[str, float] = {}

    def begin(self, name: str) -> None:
        """Start or renew a lease."""
        if self._seconds is not None and self._clock is not None:
            self._until.pop(name, None)  # keep the leases ordered by expiry
            self._until[name] = self._clock() + self._seconds

    def end(self, name: str) -> None:
        """End the given lease, if it exists."""
        self._until.pop(name, None)

    def seconds_left(self) -> dict[str, float]:
        """Return the number of seconds left on each lease, ordered by expiry."""
        now = self._clock() if self._clock is not None else 0.0
        return {name: until - now for name, until in self._until.items()}

    def restore(self, left: Mapping[str, float]) -> None:
        """Restore all leases, given the seconds left on each; see :meth:`seconds_left`."""
        now = self._clock() if self._clock is not None else 0.0
        self._until = {name: now + seconds for name, seconds in left.items()}

    def take_lapsed(self) -> list[str]:
        """Remove the expired leases; return the names of their tickets or slots, oldest first."""
        if not self._until or self._clock is None:
            return []
        now = self._clock()
        lapsed = list(takewhile(lambda name: self._until[name] <= now, self._until))
        for name in lapsed:
            del self._until[name]
        return lapsed


REMEMBERED = 10_000
"""Number of requests and ended tickets to remember, so that calls can be repeated."""

_Left = dict[str, Finite]
_COUNTS = ("taken", "reported", "given_back", "lapsed", "double", "late", "unknown")
_DROPPED = {"reported": "double", "given back": "late", "lapsed": "late"}


class Callers:
    """A session's records of leases, requests and closed tickets.

    Args:
        lease_s: lease time of a ticket or a slot in seconds; None for no limit.
        clock: returns the time in seconds; required for leases.
    """

    def __init__(self, lease_s: float | None, clock: Clock | None) -> None:
        self._lease_s, self._clock = lease_s, clock
        self.leases, self.slots = Leases(lease_s, clock), Leases(lease_s, clock)
        self._asked: Recent[Ticket] = Recent(REMEMBERED)
        self._ended: Recent[str] = Recent(REMEMBERED)
        self._out: set[str] = set()
        self._counts: Counter[str] = Counter()

    @property
    def ticket_counts(self) -> dict[str, int]:
        """Counts of tickets by event, and of dropped reports by reason."""
        return {name: self._counts[name] for name in _COUNTS}

    def find_ticket(self, request: str | None) -> Ticket | None:
        """Return the ticket issued for a request, or None if the ticket's lease has expired.

        The result is also None for new requests and for tickets that ended too long ago.
        """
        ticket = None if request is None else self._asked.get(request)
        if ticket is None or ticket.id in self._out:
            return ticket
        return ticket if self.how_ended(ticket.id) in ("reported", "given back") else None

    def record_taken(self, ticket: Ticket, slot: str | None, request: str | None) -> None:
        """Record an issued ticket."""
        self._out.add(ticket.id)
        self.leases.begin(ticket.id)
        if slot is not None:
            self.slots.begin(slot)
        if request is not None:
            self._asked.put(request, ticket)
        self._counts["taken"] += 1

    def record_end(self, ticket_id: str, how: str) -> None:
        """Record how a ticket ended: ``"reported"``, ``"given back"`` or ``"lapsed"``."""
        self._out.discard(ticket_id)
        self.leases.end(ticket_id)
        self._ended.put(ticket_id, how)
        self._counts[how.replace(" ", "_")] += 1

    def how_ended(self, ticket_id: str) -> str:
        """Return how a ticket ended, or "" if it is outstanding or no longer known."""
        return self._ended.get(ticket_id) or ""

    def record_dropped(self, ticket_id: str) -> str:
        """Count a report without an outstanding ticket, and return the reason for dropping it."""
        why = _DROPPED.get(self.how_ended(ticket_id), "unknown")
        self._counts[why] += 1
        return why

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON, without requests whose tickets are no longer outstanding."""
        asked = [(request, t.id) for request, t in self._asked.items() if t.id in self._out]
        return {
            "leases": self.leases.seconds_left(),
            "slots": self.slots.seconds_left(),
            "asked": dict(asked),
            "ended": dict(self._ended),
            "counts": dict(self._counts),
        }

    def from_state(
        self, state: Mapping[str, Any] | None, out: Iterable[Ticket], slots: Iterable[str]
    ) -> Callers:
        """Create new records from a state returned by :meth:`state_dict`.

        Args:
            state: the state; None for new records with the current counts.
            out: the outstanding tickets.
            slots: slots for which a lease begins if there is no state.
        """
        callers = Callers(self._lease_s, self._clock)
        if state is None:
            callers._counts = self._counts.copy()
            for slot in slots:
                callers.slots.begin(slot)
            return callers
        tickets = {ticket.id: ticket for ticket in out}
        callers._out.update(tickets)
        left = validate(_Left, state["leases"])
        if unknown := sorted(left.keys() - tickets):
            raise ConfigError(
                f"The saved state is damaged: {unknown} have leases but are not outstanding."
            )
        callers.leases.restore(left)
        callers.slots.restore(validate(_Left, state["slots"]))
        for request, id in validate(dict[str, str], state["asked"]).items():
            callers._asked.put(request, tickets[id])
        for id, how in validate(dict[str, str], state["ended"]).items():
            callers._ended.put(id, how)
        callers._counts = Counter(validate(dict[str, Count], state["counts"]))
        return callers
