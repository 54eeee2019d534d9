"""The base class of selectors that keep statistics of each task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from coevo_gym.core.notes import Notes
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.pool.table import Numbers, TaskTable


class TableSelector(ABC):
    """The base class of selectors that keep a table with one row per task.

    A subclass defines :attr:`columns`, updates a row in :meth:`visit`, and computes weights from
    all rows. Groups of tasks outside the pool and groups without any finished episode are ignored.
    """

    columns: ClassVar[Mapping[str, float]] = {}
    """Name of each column, with the default for a new task."""

    def __init__(self) -> None:
        self.table = TaskTable(**self.columns)

    def added(self, tasks: Sequence[Task]) -> None:
        """Add the new tasks of the pool, in order."""
        self.table.add(tasks)

    @abstractmethod
    def weights(self) -> Numbers | None:
        """Return the (n,) weight of each task; None for uniform weights.

        Weights are at least 0 and not all 0.
        """

    @abstractmethod
    def visit(self, row: int, outcomes: Numbers, group: Group) -> None:
        """Record one visit to a task.

        Args:
            row: the task's row in the table.
            outcomes: (K,) successes of the group's episodes, 0 or 1; K >= 1.
            group: the group.
        """

    def record(self, groups: Sequence[Group]) -> None:
        """Record finished groups of training episodes."""
        for group in groups:
            row = self.table.row(group.task.id)
            if row is not None and group.trajectories:
                self.visit(row, np.array([float(t.success) for t in group.trajectories]), group)

    def note(self, notes: Notes) -> None:  # noqa: B027 (it may stay empty)
        """Ignore notes; selectors of this package use outcomes only."""

    def metrics(self) -> dict[str, float]:
        """Return metrics of the selector's state."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {"table": self.table.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        self.table.load_state_dict(state["table"])
