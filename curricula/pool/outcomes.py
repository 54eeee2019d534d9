"""Outcomes of groups: the share of mixed groups, and the env steps spent per outcome."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.pool.task_stats import CAP, RECENT, TaskStats
from coevo_gym.curricula.saved import Count, read

ALL_FAIL, MIXED, ALL_PASS = OUTCOMES = ("all_fail", "mixed", "all_pass")
"""Outcomes of a group: no episode succeeded, some did, or all did."""


def outcome_of(group: Group) -> str:
    """Return the outcome of a group with at least one finished episode."""
    solved = sum(trajectory.success for trajectory in group.trajectories)
    if not solved:
        return ALL_FAIL
    return ALL_PASS if solved == len(group.trajectories) else MIXED


class Outcomes:
    """Counts of practised groups and their env steps by outcome, and the reserve of the pool.

    Only a mixed group distinguishes its episodes. If episodes are compared within their group, only
    mixed groups give a learning signal. Groups without any finished episode are not counted.

    Args:
        cap: number of visits after which a task is used up; None for no limit.
    """

    def __init__(self, cap: int | None = CAP) -> None:
        self.cap = cap
        self.stats = TaskStats()
        self._groups = dict.fromkeys(OUTCOMES, 0)
        self._steps = dict.fromkeys(OUTCOMES, 0)
        self._recent: deque[bool] = deque(maxlen=RECENT)

    def added(self, tasks: Iterable[Task]) -> None:
        """Add the new tasks of the pool."""
        self.stats.add(tasks)

    def record(self, groups: Sequence[Group]) -> None:
        """Record finished groups."""
        self.stats.record(groups)
        for group in groups:
            if group.trajectories:
                outcome = outcome_of(group)
                self._groups[outcome] += 1
                self._steps[outcome] += sum(len(t.steps) for t in group.trajectories)
                self._recent.append(outcome == MIXED)

    def metrics(self) -> dict[str, float]:
        """Return shares of mixed groups (in total and recently) and env steps by outcome.

        ``mixed_groups_recent`` covers the last 64 groups. ``reserve`` is the expected number of
        mixed groups if each task that is not used up is tried once more. Shares are 0 without
        groups.
        """
        n = sum(self._groups.values())
        return {
            "mixed_groups": self._groups[MIXED] / max(n, 1),
            "mixed_groups_recent": sum(self._recent) / max(len(self._recent), 1),
            **{f"steps_{outcome}": float(count) for outcome, count in self._steps.items()},
            "reserve": self.stats.reserve(cap=self.cap),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {
            "stats": self.stats.state_dict(),
            "groups": dict(self._groups),
            "steps": dict(self._steps),
            "recent": list(self._recent),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        self.stats.load_state_dict(state["stats"])
        self._groups = {name: read(Count, state["groups"][name]) for name in OUTCOMES}
        self._steps = {name: read(Count, state["steps"][name]) for name in OUTCOMES}
        self._recent = deque(read(list[bool], state["recent"]), maxlen=RECENT)
