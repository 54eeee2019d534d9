"""What selectors that keep numbers about each task share."""

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
    """A selector that keeps numbers about each task; the base of those in this room.

    A subclass names its :attr:`columns`, changes a row in :meth:`visit`, and makes weights of all
    rows. Groups of tasks that are not in the pool, and groups of which no episode arrived, count
    for nothing.
    """

    columns: ClassVar[Mapping[str, float]] = {}
    """Name of each column, and the number that a new task has in it."""

    def __init__(self) -> None:
        self.table = TaskTable(**self.columns)

    def added(self, tasks: Sequence[Task]) -> None:
        """The pool has grown by these tasks, in this order."""
        self.table.add(tasks)

    @abstractmethod
    def weights(self) -> Numbers | None:
        """(n,) weight of each task, at least 0 and not all 0; None for uniform."""

    @abstractmethod
    def visit(self, row: int, outcomes: Numbers, group: Group) -> None:
        """Take in one visit of a task.

        Args:
            row: the task's row in the table.
            outcomes: (K,) successes of the group's episodes, 0 or 1; K >= 1.
            group: the group.
        """

    def record(self, groups: Sequence[Group]) -> None:
        """Take in finished groups of training episodes."""
        for group in groups:
            row = self.table.row(group.task.id)
            if row is not None and group.trajectories:
                self.visit(row, np.array([float(t.success) for t in group.trajectories]), group)

    def note(self, notes: Notes) -> None:  # noqa: B027 (it may stay empty)
        """Selectors in this room read outcomes alone."""

    def metrics(self) -> dict[str, float]:
        """Numbers about its state, for any sink."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        return {"table": self.table.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.table.load_state_dict(state["table"])
