"""Pass rates of tasks when they were first tried, for selectors that go by difficulty."""

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
    """A selector that goes by how hard each task was for the policy that first tried it.

    As long as some task has not been tried, only such tasks are drawn; so the first steps try the
    whole pool once, and a task that joins it later is tried at once. With
    ``loop.study_only_steps`` nothing is learned meanwhile, and the rates are those of the policy
    that the run begins with. Visits that follow under the same version of the policy make a rate
    more exact; later ones do not change it.
    """

    columns: ClassVar = {"tries": 0.0, "successes": 0.0, "version": 0.0, "visits": 0.0}

    def __init__(self) -> None:
        super().__init__()
        self.practised = 0

    @property
    def rates(self) -> Numbers:
        """(n,) share of the first tries that succeeded; 0 for a task that was not tried."""
        return self.table["successes"] / np.maximum(self.table["tries"], 1.0)

    def rate_of(self, row: int) -> float:
        """The rate of one task."""
        return float(self.table["successes"][row] / max(self.table["tries"][row], 1.0))

    def weights(self) -> Numbers | None:
        """Tasks that were not tried, each alike; without any, :meth:`rated_weights`."""
        untried = self.table["tries"] == 0
        return untried.astype(np.float64) if untried.any() else self.rated_weights()

    @abstractmethod
    def rated_weights(self) -> Numbers:
        """(n,) weights when all tasks have a rate."""

    def visit(self, row: int, outcomes: Numbers, group: Group) -> None:
        """Count a first try into the task's rate, and another visit as practice."""
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
        """Take in a visit of a task that had a rate; see :meth:`visit`."""

    def metrics(self) -> dict[str, float]:
        """How many tasks have a rate, and the mean of the rates."""
        tried = self.table["tries"] > 0
        mean = float(self.rates[tried].mean()) if tried.any() else 0.0
        return {"tried": float(tried.sum()), "first_rate": mean}

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        return {**super().state_dict(), "practised": self.practised}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        super().load_state_dict(state)
        self.practised = read(Count, state["practised"])
