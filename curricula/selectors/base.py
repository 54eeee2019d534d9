"""Base classes for selectors that keep statistics for each task, and the uniform selector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.notes import Notes
from coevo_gym.core.task import FrozenModel, Task
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.pool.table import Numbers, TaskTable
from coevo_gym.curricula.saved import Count, validate


class TableSelector(ABC):
    """Base class for selectors that keep a table with one row per task.

    A subclass defines :attr:`columns`, updates a row in :meth:`record_visit`, and computes weights
    from all rows. Groups of tasks outside the pool and groups without finished episodes are
    ignored.
    """

    columns: ClassVar[Mapping[str, float]] = {}
    """The name of each column and its default value for new tasks."""

    def __init__(self) -> None:
        self.table = TaskTable(**self.columns)

    def added(self, tasks: Sequence[Task]) -> None:
        """Add table rows for the pool's new tasks, in order."""
        self.table.add(tasks)

    @abstractmethod
    def weights(self) -> Numbers | None:
        """Return one weight per task, or None for uniform weights.

        Weights are at least 0 and not all 0.
        """

    @abstractmethod
    def record_visit(self, row: int, outcomes: Numbers, group: Group) -> None:
        """Record one visit to a task.

        Args:
            row: the task's row in the table.
            outcomes: (K,) successes of the group's episodes, 0 or 1; K >= 1.
            group: the group.
        """

    def record(self, groups: Sequence[Group]) -> None:
        """Record finished groups of training episodes."""
        for group in groups:
            row = self.table.row_index(group.task.id)
            if row is not None and group.trajectories:
                self.record_visit(
                    row, np.array([float(t.success) for t in group.trajectories]), group
                )

    def note(self, notes: Notes) -> None:  # noqa: B027 (it may stay empty)
        """Ignore notes, because selectors in this package only use outcomes."""

    def metrics(self) -> dict[str, float]:
        """Return metrics for the selector's state."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {"table": self.table.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        self.table.load_state_dict(state["table"])


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

    def record_visit(self, row: int, outcomes: Numbers, group: Group) -> None:
        """Update the task's pass rate; after the first visit, call :meth:`record_rated_visit`."""
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
            self.record_rated_visit(row, outcomes)

    def record_rated_visit(self, row: int, outcomes: Numbers) -> None:
        """Record a visit to a task that already has a pass rate; see :meth:`record_visit`."""

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
        self.practised = validate(Count, state["practised"])


def draw_by_weight(weights: NDArray[np.float64], n: int, rng: Generator) -> NDArray[np.int64]:
    """Draw indices by weight, without replacement if enough weights are positive.

    Indices are drawn one by one, in proportion to the remaining weights. With fewer positive
    weights than ``n``, each of their indices is drawn once, then more with replacement.

    The implementation is an exponential race: each index with a positive weight w gets an
    exponential time with rate w, and the ``n`` smallest times win. The result has the same
    distribution as drawing one by one, but takes a single pass.

    Args:
        weights: (N,) finite weights on any scale, at least 0 and not all 0.
        n: number of indices, at least 1.
        rng: the only source of randomness.

    Returns:
        (n,) indices, in the order in which they were drawn.

    Raises:
        ConfigError: if the weights are invalid.

    Example:
        >>> draw_by_weight(np.array([0.0, 1.0, 3.0]), 2, np.random.default_rng(0)).tolist()
        [2, 1]
    """
    _check_weights(weights)
    scaled = weights / weights.max()
    positive = np.flatnonzero(scaled)
    with np.errstate(over="ignore"):  # negligible weights come last
        times = rng.standard_exponential(len(positive)) / scaled[positive]
    n_once = min(n, len(positive))
    first = np.argpartition(times, n_once - 1)[:n_once] if n_once < len(times) else slice(None)
    order = np.argsort(times[first], kind="stable")
    once = positive[first][order]
    if n_once == n:
        return once
    shares = scaled[positive] / scaled[positive].sum()
    return np.concatenate([once, rng.choice(positive, size=n - n_once, p=shares)])


def _check_weights(weights: NDArray[np.float64]) -> None:
    if weights.ndim != 1 or not np.isfinite(weights).all() or weights.min(initial=0.0) < 0:
        raise ConfigError(
            "A selector must return an array of weights with one finite number >= 0 per "
            f"task, got {weights!r}."
        )
    if not weights.any():
        raise ConfigError("All selector weights are 0, so no task can be drawn.")


class Uniform:
    """A selector that draws all tasks in the pool with equal probability."""

    def added(self, tasks: Sequence[Task]) -> None:
        """Do nothing, because the selector has no state."""

    def weights(self) -> None:
        """Return None, which stands for uniform weights."""

    def record(self, groups: Sequence[Group]) -> None:
        """Do nothing, because task probabilities do not depend on outcomes."""

    def note(self, notes: Notes) -> None:
        """Do nothing, because task probabilities do not depend on notes."""

    def metrics(self) -> dict[str, float]:
        """Return an empty dict, because there are no metrics."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dict, because there is no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing, because the selector has no state."""


class UniformConfig(FrozenModel):
    """Settings for a selector that draws all tasks with equal probability."""

    kind: Literal["uniform"] = "uniform"

    def make(self) -> Uniform:
        """Create a selector that draws all tasks with equal probability."""
        return Uniform()
