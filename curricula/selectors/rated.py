"""Pass rates of the first attempts at each task, for selectors based on difficulty."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.pool.table import Numbers
from coevo_gym.curricula.saved import Count, read
from coevo_gym.curricula.selectors.base import TableSelector


class RatedSelector(TableSelector):
    """Base class for selectors based on the pass rate of the first attempts at each task.

    While any task is untried, only untried tasks are drawn. The first steps therefore go through
    the pool once, and new tasks are tried immediately. With ``loop.study_only_steps``, the policy
    is not trained meanwhile, so the rates belong to the run's initial policy. Later visits under
    the same policy version refine a rate, but visits under other versions do not change it.
    """

    columns: ClassVar = {"tries": 0.0, "successes": 0.0, "version": 0.0, "visits": 0.0}

    def __init__(self) -> None:
        super().__init__()
        self.practised = 0

    @property
    def rates(self) -> Numbers:
        """Success rate of each task's first attempts, or 0 for untried tasks."""
        return self.table["successes"] / np.maximum(self.table["tries"], 1.0)

    def weights(self) -> Numbers | None:
        """Return :meth:`rated_weights`, or equal weights for untried tasks if there are any."""
        untried = self.table["tries"] == 0
        return untried.astype(np.float64) if untried.any() else self.rated_weights()

    @abstractmethod
    def rated_weights(self) -> Numbers:
        """Return each task's weight, assuming that every task has a pass rate."""

    def visit(self, row: int, outcomes: Numbers, group: Group) -> None:
        """Update the task's pass rate, and call :meth:`practise` for any visit after the first."""
        table = self.table
        table["visits"][row] += 1
        first = table["tries"][row] == 0
        if first:
            table["version"][row] = group.trajectories[0].policy_version
        versions = np.array([t.policy_version for t in group.trajectories])
        counts = versions == table["version"][row]
        table["tries"][row] += counts.sum()
        table["successes"][row] += outcomes[counts].sum()
        if not first:
            self.practised += 1
            self.practise(row, outcomes)

    def practise(self, row: int, outcomes: Numbers) -> None:
        """Record a visit to a task that already has a pass rate; see :meth:`visit`."""

    def metrics(self) -> dict[str, float]:
        """Return the number of rated tasks and their mean pass rate."""
        tried = self.table["tries"] > 0
        mean = float(self.rates[tried].mean()) if tried.any() else 0.0
        return {"tried": float(tried.sum()), "first_rate": mean}

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {**super().state_dict(), "practised": self.practised}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        super().load_state_dict(state)
        self.practised = read(Count, state["practised"])
