"""Tasks whose last visit had the largest advantages, and those not seen for long (PLR)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from coevo_gym.core.task import FrozenModel
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.pool.table import Numbers, falling
from coevo_gym.curricula.saved import Count, read
from coevo_gym.curricula.selectors.base import TableSelector


def replay_probabilities(
    scores: ArrayLike, last: ArrayLike, now: float, *, beta: float = 0.1, rho: float = 0.1
) -> Numbers:
    """Chance of each task by the rank of its score and by its staleness.

    P = (1 - rho) * rank^(-1/beta) / sum + rho * (now - last) / sum, where rank 1 has the largest
    score, and ties go by position. If nothing is stale the second part is left out.

    Args:
        scores: (n,) how much each task promises, at least 0; n >= 1.
        last: (n,) when each was last visited, at most ``now``.
        now: the present, in the same unit.
        beta: temperature of the ranks; the lower, the more the first ranks get.
        rho: share that goes by staleness, in [0, 1].

    Returns:
        (n,) probabilities.

    Source: Prioritized Level Replay (Jiang et al., arXiv 2010.03934), sections 3.1 and 3.2.
    """
    values = np.asarray(scores, dtype=np.float64)
    rank = np.empty(len(values))
    rank[falling(values)] = np.arange(1, len(values) + 1)
    by_score = rank ** (-1.0 / beta)
    by_score /= by_score.sum()
    staleness = now - np.asarray(last, dtype=np.float64)
    if not staleness.any():
        return by_score
    mixed: Numbers = (1.0 - rho) * by_score + rho * staleness / staleness.sum()
    return mixed


class PrioritisedReplay(TableSelector):
    """Ranks tasks by the mean absolute advantage of their last visit.

    The original scores a level by its mean absolute value error. Here the baseline is the group's
    mean, as in GRPO, so the score is the mean of |R - mean(R)|: 2p(1 - p) for a pass rate p. A task
    that was never visited comes first, and time is counted in groups.

    Args:
        beta: see :func:`replay_probabilities`.
        rho: see :func:`replay_probabilities`.
    """

    columns: ClassVar = {"score": 0.0, "last": -1.0}

    def __init__(self, beta: float = 0.1, rho: float = 0.1) -> None:
        super().__init__()
        self.beta, self.rho = beta, rho
        self.n_groups = 0

    def weights(self) -> Numbers | None:
        """Tasks that were never visited, each alike; without any, the probabilities."""
        table = self.table
        unseen = table["last"] < 0
        if unseen.any():
            return unseen.astype(np.float64)
        return replay_probabilities(
            table["score"], table["last"], self.n_groups, beta=self.beta, rho=self.rho
        )

    def visit(self, row: int, outcomes: Numbers, group: Group) -> None:
        """Score the task anew."""
        self.n_groups += 1
        self.table["score"][row] = np.abs(outcomes - outcomes.mean()).mean()
        self.table["last"][row] = self.n_groups

    def metrics(self) -> dict[str, float]:
        """Mean score of the tasks that were visited."""
        seen = self.table["last"] >= 0
        return {"mean_score": float(self.table["score"][seen].mean()) if seen.any() else 0.0}

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        return {**super().state_dict(), "n_groups": self.n_groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        super().load_state_dict(state)
        self.n_groups = read(Count, state["n_groups"])


class PLRConfig(FrozenModel):
    """Tasks with the largest advantages, and stale ones (PLR, arXiv 2010.03934)."""

    kind: Literal["plr"] = "plr"
    beta: float = Field(default=0.1, gt=0)
    """Temperature of the ranks; the lower, the more the first ranks get."""
    rho: float = Field(default=0.1, ge=0, le=1)
    """Share that goes by how long ago a task was visited."""

    def make(self) -> PrioritisedReplay:
        """The selector."""
        return PrioritisedReplay(self.beta, self.rho)
