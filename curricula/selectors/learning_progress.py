"""A selector that uses learning progress to favour tasks whose pass rate is changing."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

from coevo_gym.core.task import FrozenModel
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.pool.embed import normalise
from coevo_gym.curricula.pool.table import Numbers
from coevo_gym.curricula.selectors.base import TableSelector


class Averages(NamedTuple):
    """A fast and a slow moving average of the same outcomes."""

    fast: float
    slow: float


def update_averages(
    before: Averages | None, outcome: float, *, fast: float, slow: float
) -> Averages:
    """Update the fast and slow averages with a new outcome; the first outcome initialises both.

    a' = a + rate * (outcome - a).

    Args:
        before: the averages so far; None before the first outcome.
        outcome: the new outcome.
        fast: rate of the fast average, in (0, 1].
        slow: rate of the slow average, in (0, fast].
    """
    if before is None:
        return Averages(outcome, outcome)
    return Averages(*(a + r * (outcome - a) for a, r in zip(before, (fast, slow), strict=True)))


def reweight(p: ArrayLike, theta: float = 0.1) -> Numbers:
    """Transform pass rates so that changes at low rates, where progress is slow, count more.

    f(p) = p(1 - theta) / (p + theta(1 - 2p)).

    Args:
        p: pass rates in [0, 1].
        theta: strength, in (0, 1); 1/2 leaves the rates unchanged.

    Source: Kanitscheider et al. (arXiv 2106.14876), section 2.1.
    """
    rate = np.asarray(p, dtype=np.float64)
    stretched: Numbers = rate * (1.0 - theta) / (rate + theta * (1.0 - 2.0 * rate))
    return stretched


def learning_progress(fast: ArrayLike, slow: ArrayLike, theta: float = 0.1) -> Numbers:
    """Return the absolute change in each task's pass rate, with more weight on low rates.

    Args:
        fast: (n,) fast averages of outcomes.
        slow: (n,) slow averages of outcomes.
        theta: see :func:`reweight`. The result is abs(f(fast) - f(slow)), where f reweights rates.
    """
    return np.abs(reweight(fast, theta) - reweight(slow, theta))


def progress_nearby(
    vector: ArrayLike, others: ArrayLike, fast: ArrayLike, slow: ArrayLike
) -> float:
    """Return the mean progress of other tasks, weighted by their similarity to the given task.

    Args:
        vector: (dim,) vector of the task, of any length.
        others: (n, dim) vectors of the tasks with known progress.
        fast: (n,) fast averages of these tasks.
        slow: (n,) slow averages of these tasks.

    Returns:
        A value in [0, 1]. The weights are squared cosines, with negative cosines set to 0, so
        similar tasks count most and opposite tasks are ignored. It is 0 if no cosine is positive.
    """
    cosine = (
        normalise(np.asarray(others, dtype=np.float64))
        @ normalise(np.asarray([vector], dtype=np.float64))[0]
    )
    likeness = np.maximum(cosine, 0.0) ** 2
    total = likeness.sum()
    change = np.abs(np.asarray(fast, dtype=np.float64) - np.asarray(slow, dtype=np.float64))
    return float(likeness @ change / total) if total > 0 else 0.0


class ProgressConfig(FrozenModel):
    """Settings for a selector of tasks whose pass rate is changing (arXiv 2106.14876)."""

    kind: Literal["progress"] = "progress"
    fast: float = Field(default=0.3, gt=0, le=1)
    """Rate of the fast average, per visit."""
    slow: float = Field(default=0.05, gt=0, le=1)
    """Rate of the slow average, per visit; must be below ``fast``."""
    theta: float = Field(default=0.1, gt=0, lt=1)
    """Degree to which low pass rates are stretched; 0.5 leaves the rates unchanged."""
    explore: float = Field(default=0.1, gt=0, le=1)
    """Share of draws that are uniform over the pool."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.slow >= self.fast:
            raise ValueError(f"selector.slow={self.slow} must be below selector.fast={self.fast}")
        return self

    def make(self) -> Progress:
        """Create a selector with these settings."""
        return Progress(self)


class Progress(TableSelector):
    """A selector that weights tasks by their learning progress and sometimes draws uniformly.

    Tasks that were never visited come first, because their progress is unknown. A visit's outcome
    is the mean success of its episodes.
    """

    columns: ClassVar = {"visits": 0.0, "fast": 0.0, "slow": 0.0}

    def __init__(self, config: ProgressConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def progress(self) -> Numbers:
        """Learning progress of each task, shape (n,)."""
        return learning_progress(self.table["fast"], self.table["slow"], self.config.theta)

    def weights(self) -> Numbers | None:
        """Return progress-based weights, or equal weights for unvisited tasks if there are any."""
        unseen: Numbers = (self.table["visits"] == 0).astype(np.float64)
        if unseen.any():
            return unseen
        progress, explore = self.progress, self.config.explore
        total = progress.sum()
        if total <= 0:
            return np.ones(len(progress))
        mixed: Numbers = (1.0 - explore) * progress / total + explore / len(progress)
        return mixed

    def record_visit(self, row: int, outcomes: Numbers, group: Group) -> None:
        """Update the fast and slow averages of the task's outcomes."""
        table, config = self.table, self.config
        before = Averages(table["fast"][row], table["slow"][row]) if table["visits"][row] else None
        after = update_averages(before, float(outcomes.mean()), fast=config.fast, slow=config.slow)
        table["fast"][row], table["slow"][row] = after
        table["visits"][row] += 1

    def metrics(self) -> dict[str, float]:
        """Return the mean progress of the pool's tasks."""
        return {"mean_progress": float(self.progress.mean()) if len(self.table) else 0.0}
