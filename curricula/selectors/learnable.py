"""A selector that favours tasks solved about half the time."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from coevo_gym.core.task import FrozenModel
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.pool.table import Numbers
from coevo_gym.curricula.selectors.base import TableSelector


def learnability(successes: ArrayLike, episodes: ArrayLike) -> Numbers:
    """Return the learnability of each task: p(1 - p), where p is the smoothed success rate.

    p = (s + 1) / (m + 2), so the learnability is never 0, and highest for tasks without episodes.

    Args:
        successes: (n,) s, number of successful episodes.
        episodes: (n,) m, number of episodes.

    Example:
        >>> learnability([0, 4], [0, 8]).tolist()
        [0.25, 0.25]

    Source: Rutherford et al. (arXiv 2408.15099), who use p(1 - p); the smoothing is ours.
    """
    p = (np.asarray(successes, dtype=np.float64) + 1.0) / (np.asarray(episodes) + 2.0)
    return p * (1.0 - p)


class Learnable(TableSelector):
    """A selector that weights tasks by their learnability.

    At each visit to a task, its earlier counts are multiplied by ``memory``, because they stem from
    an earlier policy.

    Args:
        memory: factor applied to earlier counts, from 0 to 1.
    """

    columns: ClassVar = {"successes": 0.0, "episodes": 0.0}

    def __init__(self, memory: float = 0.5) -> None:
        super().__init__()
        self.memory = memory

    def weights(self) -> Numbers:
        """Return the learnability of each task, a number from 0 to 1/4."""
        return learnability(self.table["successes"], self.table["episodes"])

    def record_visit(self, row: int, outcomes: Numbers, group: Group) -> None:
        """Update a task's success and episode counts."""
        for column, count in (("successes", outcomes.sum()), ("episodes", len(outcomes))):
            self.table[column][row] = self.memory * self.table[column][row] + count

    def metrics(self) -> dict[str, float]:
        """Return the mean learnability of the pool's tasks."""
        return {"mean_learnability": float(self.weights().mean()) if len(self.table) else 0.0}


class LearnableConfig(FrozenModel):
    """Settings for a selector that weights tasks by p(1 - p), where p is the pass rate."""

    kind: Literal["learnable"] = "learnable"
    memory: float = Field(default=0.5, ge=0, le=1)
    """Factor applied to a task's earlier counts at each visit."""

    def make(self) -> Learnable:
        """Create a selector with these settings."""
        return Learnable(self.memory)
