"""How tasks went lately, from outcomes alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.pool.table import Numbers, TaskTable
from coevo_gym.curricula.saved import Count, Share, read

MEMORY = 0.5
"""What is kept of a task's counts at each visit: they were an earlier policy's."""
PRIOR = 2.0
"""Episodes that the pool's mean counts for in a task's rate."""
RECENT = 64
"""Groups that the pool's mean is taken over."""
GROUP_SIZE = 8
"""K, episodes of a group, where none was recorded yet."""
CAP = 8
"""Visits after which a task is taken for used up."""
LOWEST, HIGHEST = 0.05, 0.95
"""The pool's mean is kept between these, so that no task is hopeless or done before it is tried."""


def expected_rates(alpha: ArrayLike, beta: ArrayLike, mean: float) -> Numbers:
    """Success rates that are to be expected: p = (alpha + 2 m) / (alpha + beta + 2).

    A task that was never tried is expected to be as the others are.

    Args:
        alpha: (n,) remembered successes of each task.
        beta: (n,) remembered failures.
        mean: m, the mean success of all tasks, in [0, 1].

    Example:
        >>> expected_rates([8, 0], [0, 0], 0.5).tolist()
        [0.9, 0.5]
    """
    a, b = np.asarray(alpha, dtype=np.float64), np.asarray(beta, dtype=np.float64)
    rates: Numbers = (a + PRIOR * mean) / (a + b + PRIOR)
    return rates


def mixed_chance(p: ArrayLike, k: int) -> Numbers:
    """Chance that a group has successes and failures, so that it can be learned from.

    q(p) = 1 - p^k - (1 - p)^k.

    Args:
        p: success rates in [0, 1], of any shape.
        k: episodes of the group, at least 1.

    Example:
        >>> mixed_chance([0.0, 0.5, 1.0], 2).tolist()
        [0.0, 0.5, 0.0]
    """
    rate = np.asarray(p, dtype=np.float64)
    chance: Numbers = 1.0 - rate**k - (1.0 - rate) ** k
    return chance


def reserve(rates: ArrayLike, visits: ArrayLike, *, k: int, cap: int | None = CAP) -> float:
    """How many groups to learn from are to be expected if each task is tried once more.

    R = sum of q(p) over the tasks with fewer than ``cap`` visits, with q of :func:`mixed_chance`.

    Args:
        rates: (n,) success rate that is expected of each task.
        visits: (n,) how often each was visited.
        k: episodes of a group.
        cap: visits after which a task is used up; None for no end.

    Example:
        >>> reserve([0.5, 0.5, 1.0], [0, 8, 0], k=2)
        0.5
    """
    chances = mixed_chance(rates, k)
    return float(chances.sum() if cap is None else chances[np.asarray(visits) < cap].sum())


class TaskStats:
    """Successes (alpha), failures (beta) and visits of each task, and the mean success of late.

    At each visit a task's counts are halved, and what was seen is added: alpha = alpha / 2 +
    successes. Groups of tasks that were not added, and groups of which no episode arrived, count
    for nothing.

    Attributes:
        group_size: K, episodes of a whole group, as they were recorded last.

    Example:
        >>> from coevo_gym import tasks
        >>> stats = TaskStats()
        >>> stats.add(tasks("webshop", "train")[:2])
        >>> stats.mean, stats.rates.tolist()
        (0.5, [0.5, 0.5])
    """

    def __init__(self) -> None:
        self.table = TaskTable(alpha=0.0, beta=0.0, visits=0.0)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self.group_size = GROUP_SIZE

    def __len__(self) -> int:
        return len(self.table)

    def add(self, tasks: Iterable[Task]) -> None:
        """Append tasks that are not there yet."""
        self.table.add(tasks)

    def record(self, groups: Sequence[Group]) -> None:
        """Take in finished groups."""
        for group in groups:
            row = self.table.row(group.task.id)
            if row is not None and group.trajectories:
                self._visit(row, group)

    def _visit(self, row: int, group: Group) -> None:
        n, solved = len(group.trajectories), sum(t.success for t in group.trajectories)
        for column, count in (("alpha", solved), ("beta", n - solved)):
            self.table[column][row] = MEMORY * self.table[column][row] + count
        self.table["visits"][row] += 1
        self._recent.append(solved / n)
        self.group_size = group.size

    @property
    def mean(self) -> float:
        """Mean success of the last :data:`RECENT` groups, clipped; 1/2 before there is one."""
        if not self._recent:
            return 0.5
        return float(np.clip(np.mean(self._recent), LOWEST, HIGHEST))

    @property
    def rates(self) -> Numbers:
        """(n,) the success rate that is to be expected of each task."""
        return expected_rates(self.table["alpha"], self.table["beta"], self.mean)

    @property
    def visits(self) -> Numbers:
        """(n,) how often each task was visited."""
        return self.table["visits"]

    def reserve(self, tasks: Iterable[Task] | None = None, *, cap: int | None = CAP) -> float:
        """How many groups to learn from are left; see :func:`reserve`.

        Args:
            tasks: in which tasks, of those that were added; None for all.
            cap: visits after which a task is used up; None for no end.
        """
        rates, visits = self.rates, self.visits
        if tasks is not None:
            rows = [row for t in tasks if (row := self.table.row(t.id)) is not None]
            rates, visits = rates[rows], visits[rows]
        return reserve(rates, visits, k=self.group_size, cap=cap)

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        return {
            "table": self.table.state_dict(),
            "recent": list(self._recent),
            "group_size": self.group_size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.table.load_state_dict(state["table"])
        self._recent = deque(read(list[Share], state["recent"]), maxlen=RECENT)
        self.group_size = read(Count, state["group_size"])
