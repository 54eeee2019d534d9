"""Rounds that start when the pool is nearly used up, sized by the shortfall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.growth.when import Due
from coevo_gym.curricula.pool.task_stats import CAP, TaskStats, mixed_chance
from coevo_gym.curricula.saved import Count, read

LEAST_CHANCE = 0.15
"""Lower bound for the expected chance that a new task gives a mixed group."""


def drafts_wanted(reserve: float, *, every_groups: int, mean: float, k: int, most: int) -> int:
    """Return the number of new tasks needed to last until the next check of the pool.

    n = clip((F - R) / max(0.15, q(m)), 0, most), rounded down; q is
    :func:`~coevo_gym.curricula.pool.task_stats.mixed_chance`.

    Args:
        reserve: R, expected mixed groups left in the pool.
        every_groups: F, groups practised until the next check.
        mean: m, recent mean success rate, used as the expected rate of a new task.
        k: episodes per group.
        most: upper limit.

    Example:
        >>> drafts_wanted(60.0, every_groups=100, mean=0.5, k=2, most=128)
        80
    """
    wanted = (every_groups - reserve) / max(LEAST_CHANCE, float(mixed_chance(mean, k)))
    return int(min(max(wanted, 0.0), most))


class Reserve:
    """A rule that starts a round if the pool will not provide enough mixed groups.

    At fixed intervals, the rule checks if the pool holds enough mixed groups until the next check.
    If it does, no round starts, and the count of groups restarts. If it does not, a round tries as
    many drafts as are lacking, from as many contexts. Signals are ignored.

    Args:
        every_groups: F, groups between two checks.
        drafts: maximum drafts per round.
        cap: number of visits after which a task is used up; None for no limit.
    """

    def __init__(self, every_groups: int, *, drafts: int, cap: int | None = CAP) -> None:
        self.every_groups = every_groups
        self.drafts = drafts
        self.cap = cap
        self.stats = TaskStats()
        self._groups_since_look = 0

    def record(self, groups: Sequence[Group]) -> None:
        """Record finished groups."""
        self.stats.add(group.task for group in groups)
        self.stats.record(groups)
        self._groups_since_look += len(groups)

    def due(self, pool: Sequence[Task], n_pending: int) -> Due | None:
        """Return the round that is due; see :class:`~coevo_gym.curricula.growth.when.When`."""
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
        """Return the state as JSON."""
        return {"groups_since_round": self._groups_since_look, "stats": self.stats.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`.

        From a state with counts only, all tasks start as unvisited.
        """
        self._groups_since_look = read(Count, state["groups_since_round"])
        self.stats = TaskStats()
        if "stats" in state:
            self.stats.load_state_dict(state["stats"])
