"""Rules for when a round is due and how large it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.saved import Count, read


class Due(NamedTuple):
    """A round that is due.

    Attributes:
        drafts: maximum number of drafts, at least 1.
        places: maximum number of contexts, at least 1.
    """

    drafts: int
    places: int


class When(Protocol):
    """Interface of pure rules for when a round is due and how large it is."""

    def record(self, groups: Sequence[Group]) -> None:
        """Record finished groups."""
        ...

    def due(self, pool: Sequence[Task], n_pending: int) -> Due | None:
        """Return the round that is due and restart the count; None if none is due.

        Args:
            pool: all tasks in the pool, at least one.
            n_pending: number of contexts of signals since the last round.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON; its keys are merged with those of the growth."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`, ignoring other keys."""
        ...


class WhenSignalled:
    """A rule that starts rounds of fixed size at fixed intervals, as soon as a signal is pending.

    A round that is due while no signal is pending waits for one.

    Args:
        every_groups: groups between two rounds.
        drafts: maximum drafts per round.
        max_places: maximum contexts per round; a round explores all pending contexts up to this
            number.
    """

    def __init__(self, every_groups: int, *, drafts: int, max_places: int) -> None:
        self.every_groups = every_groups
        self.drafts = drafts
        self.max_places = max_places
        self._groups_since_round = 0

    def record(self, groups: Sequence[Group]) -> None:
        """Count finished groups."""
        self._groups_since_round += len(groups)

    def due(self, pool: Sequence[Task], n_pending: int) -> Due | None:
        """Return the round that is due; see :class:`When`."""
        if self._groups_since_round < self.every_groups or not n_pending:
            return None
        self._groups_since_round = 0
        return Due(self.drafts, min(n_pending, self.max_places))

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {"groups_since_round": self._groups_since_round}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        self._groups_since_round = read(Count, state["groups_since_round"])
