"""How common each failure mode is, and which tasks are drawn more often for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from coevo_gym.core.notes import Notes
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.pool.table import Numbers
from coevo_gym.curricula.selectors.base import TableSelector

FAILURE_MODE = "failure_mode"
"""Kind of the notes that name the failure mode of a task."""

MAX_TASKS = 512
"""Latest tasks that are remembered for each failure mode."""


def counts_after(
    counts: Mapping[str, float], modes: Iterable[str], *, half_life_steps: float = 20.0
) -> dict[str, float]:
    """Return the decayed counts of failure modes after one more step of the learner.

    Args:
        counts: those before.
        modes: mode of each failure in the step.
        half_life_steps: steps after which a failure counts half.

    Returns:
        n_m of each mode ever seen: the sum of 0.5 ** (age / half_life_steps) over its failures.

    Example:
        >>> counts_after({"loop": 1.0}, ["loop", "grab"], half_life_steps=1.0)
        {'loop': 1.5, 'grab': 1.0}

    Source: ours; Role-Agent (arXiv 2606.10917, 3.3) prints no number.
    """
    factor = 0.5 ** (1.0 / half_life_steps)
    found = {mode: count * factor for mode, count in counts.items()}
    for mode in modes:
        found[mode] = found.get(mode, 0.0) + 1.0
    return found


def mode_weights(
    buckets: Mapping[str, Iterable[str]], counts: Mapping[str, float], *, weight: float = 1.0
) -> dict[str, float]:
    """Return the drawing weights of the tasks that have failed; all others weigh 1.

    A task weighs 1, plus ``weight`` times the share of failures whose mode it has shown.

    Args:
        buckets: ids of the tasks that have shown each mode.
        counts: decayed count of each mode.
        weight: lambda, at least 0.

    Example:
        >>> mode_weights({"loop": ["a"], "grab": ["a", "b"]}, {"loop": 3.0, "grab": 1.0})
        {'a': 2.0, 'b': 1.25}

    Source: ours, for Role-Agent (arXiv 2606.10917), 3.3.
    """
    total = sum(counts.values())
    found: dict[str, float] = {}
    for mode, tasks in buckets.items():
        for task in tasks:
            share = counts.get(mode, 0.0) / total if total else 0.0
            found[task] = found.get(task, 1.0) + weight * share
    return found


class FailureMemory:
    """Remembers how common each failure mode is, and which tasks have shown it.

    Args:
        half_life_steps: steps of the learner after which a failure counts half.
        capacity: tasks that are remembered for each mode; beyond that the first one is forgotten.

    Attributes:
        counts: decayed count of each mode.
        buckets: for each mode, the ids of the tasks that have shown it, in order of arrival.

    Source: Agent-In-World of Role-Agent (arXiv 2606.10917), 3.3; numbers are ours.
    """

    def __init__(self, *, half_life_steps: float = 20.0, capacity: int = MAX_TASKS) -> None:
        self._half_life_steps, self._capacity = half_life_steps, capacity
        self.counts: dict[str, float] = {}
        self.buckets: dict[str, dict[str, None]] = {}  # sets that keep their order
        self._total = 0

    def note(self, notes: Notes) -> None:
        """Take in the failures of a learner's step; those before count less."""
        failed = [note for note in notes if note.kind == FAILURE_MODE]
        modes = [note.label for note in failed]
        self.counts = counts_after(self.counts, modes, half_life_steps=self._half_life_steps)
        self._total += len(failed)
        for note in failed:
            bucket = self.buckets.setdefault(note.label, {})
            bucket[note.task_id] = None
            if len(bucket) > self._capacity:
                del bucket[next(iter(bucket))]

    @property
    def tasks(self) -> set[str]:
        """Ids of the tasks that have shown any mode."""
        return {task for bucket in self.buckets.values() for task in bucket}

    def metrics(self) -> dict[str, float]:
        """Return all failures ever, the tasks that are remembered, and each mode's share."""
        whole = sum(self.counts.values())
        shares = {f"share_{mode}": count / whole for mode, count in self.counts.items() if whole}
        return {"total": float(self._total), "tasks": float(len(self.tasks)), **shares}

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        buckets = {mode: list(bucket) for mode, bucket in self.buckets.items()}
        return {"counts": dict(self.counts), "buckets": buckets, "total": self._total}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.counts = {mode: float(count) for mode, count in state["counts"].items()}
        self.buckets = {mode: dict.fromkeys(ids) for mode, ids in state["buckets"].items()}
        self._total = int(state["total"])


class ByFailureMode(TableSelector):
    """Draws tasks more often whose failure modes are common; see :func:`mode_weights`.

    Args:
        memory: knows the failure modes and their tasks.
        weight: lambda: what a task with all modes weighs beyond 1.
    """

    columns: ClassVar = {"solved": 0.0}
    """1 for a task all of whose episodes succeeded when it was last practised."""

    def __init__(self, memory: FailureMemory, *, weight: float = 1.0) -> None:
        super().__init__()
        self._memory, self._weight = memory, weight

    def visit(self, row: int, outcomes: Numbers, group: Group) -> None:
        """Remember whether every episode succeeded."""
        self.table["solved"][row] = float(outcomes.all())

    def weights(self) -> Numbers | None:
        """(n,) weights, from 1 to 1 + lambda; None while nothing has failed."""
        memory = self._memory
        raised = mode_weights(memory.buckets, memory.counts, weight=self._weight)
        if not raised:
            return None
        found = np.ones(len(self.table))
        for task, weight in raised.items():
            row = self.table.row(task)
            if row is not None:
                found[row] = weight
        return found

    def metrics(self) -> dict[str, float]:
        """Share of the tasks that have failed that are solved every time by now."""
        rows = [row for row in map(self.table.row, self._memory.tasks) if row is not None]
        return {"overcome": float(self.table["solved"][rows].mean()) if rows else 0.0}
