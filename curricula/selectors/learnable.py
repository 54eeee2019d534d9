"""Tasks that are solved about half of the time."""

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
    """How much there is to learn from each task: p(1 - p) with p = (s + 1) / (m + 2).

    The smoothing makes a task without episodes the most learnable, and none hopeless.

    Args:
        successes: (n,) s, episodes that succeeded.
        episodes: (n,) m, all of them.

    Example:
        >>> learnability([0, 4], [0, 8]).tolist()
        [0.25, 0.25]

    Source: Rutherford et al. (arXiv 2408.15099), who take p(1 - p); the smoothing is ours.
    """
    p = (np.asarray(successes, dtype=np.float64) + 1.0) / (np.asarray(episodes) + 2.0)
    return p * (1.0 - p)


class Learnable(TableSelector):
    """Weighs tasks by their learnability.

    At each visit of a task the counts of the earlier ones are multiplied by ``memory``, because
    they were an earlier policy's.

    Args:
        memory: what is kept of earlier counts, from 0 to 1.
    """

    columns: ClassVar = {"successes": 0.0, "episodes": 0.0}

    def __init__(self, memory: float = 0.5) -> None:
        super().__init__()
        self.memory = memory

    def weights(self) -> Numbers:
        """(n,) p(1 - p), at most 1/4."""
        return learnability(self.table["successes"], self.table["episodes"])

    def visit(self, row: int, outcomes: Numbers, group: Group) -> None:
        """Count the visit."""
        for column, count in (("successes", outcomes.sum()), ("episodes", len(outcomes))):
            self.table[column][row] = self.memory * self.table[column][row] + count

    def metrics(self) -> dict[str, float]:
        """Mean learnability of the pool."""
        return {"mean_learnability": float(self.weights().mean()) if len(self.table) else 0.0}


class LearnableConfig(FrozenModel):
    """Tasks by p(1 - p) of their pass rate (arXiv 2408.15099)."""

    kind: Literal["learnable"] = "learnable"
    memory: float = Field(default=0.5, ge=0, le=1)
    """What is kept of a task's earlier counts at each visit."""

    def make(self) -> Learnable:
        """The selector."""
        return Learnable(self.memory)
