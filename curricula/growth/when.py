"""When a round is due, and how much it tries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.saved import Count, read


class Due(NamedTuple):
    """A round that is due.

    Attributes:
        drafts: most drafts that it tries, at least 1.
        places: most places that it explores, at least 1.
    """

    drafts: int
    places: int


class When(Protocol):
    """Says when a round is due, and how much it tries; pure."""

    def record(self, groups: Sequence[Group]) -> None:
        """Take in finished groups."""
        ...

    def due(self, pool: Sequence[Task], n_pending: int) -> Due | None:
        """The round that is due, which uses it up: what was counted is counted anew.

        Args:
            pool: all tasks, at least one.
            n_pending: contexts of the signals since the last round.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON; its keys lie beside those of the growth that asks it."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; there may be more keys."""
        ...


class WhenSignalled:
    """Every so many groups, as soon as a signal is pending; always as many drafts.

    A round that is due while nothing is pending waits for a signal.

    Args:
        every_groups: groups between two rounds.
        drafts: most drafts of a round.
        max_places: most places of a round; it explores as many as there are contexts pending.
    """

    def __init__(self, every_groups: int, *, drafts: int, max_places: int) -> None:
        self.every_groups = every_groups
        self.drafts = drafts
        self.max_places = max_places
        self._groups_since_round = 0

    def record(self, groups: Sequence[Group]) -> None:
        """Count."""
        self._groups_since_round += len(groups)

    def due(self, pool: Sequence[Task], n_pending: int) -> Due | None:
        """See :class:`When`."""
        if self._groups_since_round < self.every_groups or not n_pending:
            return None
        self._groups_since_round = 0
        return Due(self.drafts, min(n_pending, self.max_places))

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        return {"groups_since_round": self._groups_since_round}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self._groups_since_round = read(Count, state["groups_since_round"])
