"""A selector that favours tasks that are neither mastered nor out of reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from coevo_gym.core.notes import Notes
from coevo_gym.core.task import FrozenModel, Task
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.pool.table import Numbers
from coevo_gym.curricula.pool.task_stats import CAP, TaskStats

LOW, HIGH = 0.1, 0.9
"""Bounds of the band: expected success rates of tasks that are worth training on. With 8 episodes
per group, a first visit without any successes or failures moves the task out of the band on the
side of the pool's mean, but a mixed visit does not."""


def band_weights(
    rates: ArrayLike, visits: ArrayLike, *, cap: int | None = CAP, epsilon: float = 0.1
) -> Numbers:
    """Return the probability of each task. Tasks outside the target band rarely get drawn.

    w = 0 for a visited task with p > 0.9, p < 0.1, or at least ``cap`` visits; otherwise 1. P = (1
    - epsilon) w / sum(w) + epsilon / n; uniform if all w are 0.

    Args:
        rates: (n,) p, expected success rate of each task; n >= 1.
        visits: (n,) number of visits to each task.
        cap: number of visits after which a task is used up; None for no limit.
        epsilon: share of draws that are uniform over all tasks, in [0, 1].

    Returns:
        (n,) probabilities.

    Example:
        >>> band_weights([0.5, 0.95, 0.95], [1, 1, 0], epsilon=0.0).tolist()
        [0.5, 0.0, 0.5]
    """
    p, seen = np.asarray(rates, dtype=np.float64), np.asarray(visits, dtype=np.float64)
    done = (p > HIGH) | (p < LOW)
    if cap is not None:
        done |= seen >= cap
    inside = (~done | (seen == 0)).astype(np.float64)
    if not inside.any():
        return np.full(len(p), 1.0 / len(p))
    mixed: Numbers = (1.0 - epsilon) * inside / inside.sum() + epsilon / len(p)
    return mixed


class BandConfig(FrozenModel):
    """Settings for a selector that draws only tasks with a success rate between 0.1 and 0.9."""

    kind: Literal["band"] = "band"
    cap: int | None = Field(default=CAP, ge=1)
    """Number of visits (groups of 8 episodes) after which a task is used up. None: no limit, which
    is required for a pool that does not grow."""
    epsilon: float = Field(default=0.1, gt=0, le=1)
    """Share of draws that are uniform over the pool."""
    shuffled: bool = False
    """Shuffle the outcomes among tasks, as a control that measures the value of outcomes."""

    def make(self) -> Band:
        """Create a selector with these settings."""
        return Band(self)


class Band:
    """A selector that draws most tasks uniformly from a band of success rates.

    The band contains tasks that were never visited and tasks with a success rate from 0.1 to 0.9.
    The rare draws of other tasks detect tasks that return to the band, for example if they are
    forgotten.

    With ``shuffled``, the rates of the visited tasks are permuted, so the number of tasks outside
    the band stays the same. The permutation depends only on the state and changes with each group.
    As a control for the value of outcomes, it keeps everything that does not depend on *which* task
    had which outcome, including the visits.
    """

    def __init__(self, config: BandConfig) -> None:
        self.config = config
        self.stats = TaskStats()

    def added(self, tasks: Sequence[Task]) -> None:
        """Add table rows for the pool's new tasks, in order."""
        self.stats.add(tasks)

    def record(self, groups: Sequence[Group]) -> None:
        """Record finished groups of training episodes."""
        self.stats.record(groups)

    def note(self, notes: Notes) -> None:
        """Ignore notes, because the selector only uses outcomes."""

    @property
    def rates(self) -> Numbers:
        """The success rates that the selector uses, one per task."""
        rates = self.stats.rates
        if self.config.shuffled:
            visits = self.stats.visits
            seen = np.flatnonzero(visits)
            rng = np.random.default_rng(int(visits.sum()))
            rates[seen] = rates[rng.permutation(seen)]
        return rates

    def weights(self) -> Numbers:
        """Return the probability of each task."""
        cap, epsilon = self.config.cap, self.config.epsilon
        return band_weights(self.rates, self.stats.visits, cap=cap, epsilon=epsilon)

    def metrics(self) -> dict[str, float]:
        """Return the shares of tasks in the pool that are too easy, too hard, or used up.

        A task that is used up counts only as used up, regardless of its success rate.
        """
        n = max(len(self.stats), 1)
        rates, visits, cap = self.rates, self.stats.visits, self.config.cap
        used_up = visits >= (np.inf if cap is None else cap)
        open = (visits > 0) & ~used_up
        easy, hard = open & (rates > HIGH), open & (rates < LOW)
        shares = {"too_easy": easy, "too_hard": hard, "used_up": used_up}
        return {name: float(rows.sum()) / n for name, rows in shares.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {"stats": self.stats.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        self.stats.load_state_dict(state["stats"])
