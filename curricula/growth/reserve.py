"""Rounds when the pool is used up, and as large as what it lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.growth.when import Due
from coevo_gym.curricula.pool.task_stats import CAP, TaskStats, mixed_chance
from coevo_gym.curricula.saved import Count, read

LEAST_CHANCE = 0.15
"""A new task is expected to give a mixed group at least so often."""


def drafts_wanted(reserve: float, *, every_groups: int, mean: float, k: int, most: int) -> int:
    """How many new tasks make the reserve last until the next look.

    n = clip((F - R) / max(0.15, q(m)), 0, most), cut to a whole number; q is
    :func:`~coevo_gym.curricula.pool.task_stats.mixed_chance`.

    Args:
        reserve: R, groups to learn from that the pool still holds.
        every_groups: F, groups that are practised until the next look.
        mean: m, the mean success of late, as which a new task is expected to go.
        k: episodes of a group.
        most: the most.

    Example:
        >>> drafts_wanted(60.0, every_groups=100, mean=0.5, k=2, most=128)
        80
    """
    wanted = (every_groups - reserve) / max(LEAST_CHANCE, float(mixed_chance(mean, k)))
    return int(min(max(wanted, 0.0), most))


class Reserve:
    """Looks every so many groups whether the pool holds enough to learn from until the next look.

    If it does, there is no round, and groups are counted anew. Else a round tries as many drafts as
    are lacking, from as many places. Signals have no say in it.

    Args:
        every_groups: F, groups between two looks.
        drafts: most drafts of a round.
        cap: visits after which a task is used up; None for no end.
    """

    def __init__(self, every_groups: int, *, drafts: int, cap: int | None = CAP) -> None:
        self.every_groups = every_groups
        self.drafts = drafts
        self.cap = cap
        self.stats = TaskStats()
        self._groups_since_look = 0

    def record(self, groups: Sequence[Group]) -> None:
        """Take in finished groups."""
        self.stats.add(group.task for group in groups)
        self.stats.record(groups)
        self._groups_since_look += len(groups)

    def due(self, pool: Sequence[Task], n_pending: int) -> Due | None:
        """See :class:`~coevo_gym.curricula.growth.when.When`."""
        if self._groups_since_look < self.every_groups:
            return None
        self._groups_since_look = 0
        stats = self.stats
        stats.add(pool)
        n = drafts_wanted(
            stats.reserve(pool, cap=self.cap),
            every_groups=self.every_groups,
            mean=stats.mean,
            k=stats.group_size,
            most=self.drafts,
        )
        return Due(drafts=n, places=n) if n else None

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        return {"groups_since_round": self._groups_since_look, "stats": self.stats.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; from one that only counts, tasks begin as never visited."""
        self._groups_since_look = read(Count, state["groups_since_round"])
        self.stats = TaskStats()
        if "stats" in state:
            self.stats.load_state_dict(state["stats"])
