"""How many groups could be learned from, and what the others cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.pool.task_stats import CAP, RECENT, TaskStats
from coevo_gym.curricula.saved import Count, read

ALL_FAIL, MIXED, ALL_PASS = OUTCOMES = ("all_fail", "mixed", "all_pass")
"""What a group's episodes came to: none succeeded, some did, or all."""


def outcome_of(group: Group) -> str:
    """Which of :data:`OUTCOMES` a group has, by the episodes that arrived; one at least."""
    solved = sum(trajectory.success for trajectory in group.trajectories)
    if not solved:
        return ALL_FAIL
    return ALL_PASS if solved == len(group.trajectories) else MIXED


class Outcomes:
    """Counts practised groups and their env steps by outcome, and what the pool still holds.

    Only a mixed group tells its episodes apart, so only such a group is learned from where episodes
    are judged against their group. Groups of which no episode arrived are not counted.

    Args:
        cap: visits after which a task is used up; None for no end.
    """

    def __init__(self, cap: int | None = CAP) -> None:
        self.cap = cap
        self.stats = TaskStats()
        self._groups = dict.fromkeys(OUTCOMES, 0)
        self._steps = dict.fromkeys(OUTCOMES, 0)
        self._recent: deque[bool] = deque(maxlen=RECENT)

    def added(self, tasks: Iterable[Task]) -> None:
        """The pool has grown by these tasks."""
        self.stats.add(tasks)

    def record(self, groups: Sequence[Group]) -> None:
        """Take in finished groups."""
        self.stats.record(groups)
        for group in groups:
            if group.trajectories:
                outcome = outcome_of(group)
                self._groups[outcome] += 1
                self._steps[outcome] += sum(len(t.steps) for t in group.trajectories)
                self._recent.append(outcome == MIXED)

    def metrics(self) -> dict[str, float]:
        """Shares of groups that were mixed, of all and of the last 64; env steps by outcome.

        ``reserve`` is how many mixed groups are to be expected if each task that is not used up
        is tried once more. A share of no groups is 0.
        """
        n = sum(self._groups.values())
        return {
            "mixed_groups": self._groups[MIXED] / max(n, 1),
            "mixed_groups_recent": sum(self._recent) / max(len(self._recent), 1),
            **{f"steps_{outcome}": float(count) for outcome, count in self._steps.items()},
            "reserve": self.stats.reserve(cap=self.cap),
        }

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        return {
            "stats": self.stats.state_dict(),
            "groups": dict(self._groups),
            "steps": dict(self._steps),
            "recent": list(self._recent),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.stats.load_state_dict(state["stats"])
        self._groups = {name: read(Count, state["groups"][name]) for name in OUTCOMES}
        self._steps = {name: read(Count, state["steps"][name]) for name in OUTCOMES}
        self._recent = deque(read(list[bool], state["recent"]), maxlen=RECENT)
