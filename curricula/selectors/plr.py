"""PLR: a selector that favours tasks with large advantages and tasks not visited recently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from coevo_gym.core.task import FrozenModel
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.pool.table import Numbers, argsort_descending
from coevo_gym.curricula.saved import Count, validate
from coevo_gym.curricula.selectors.base import TableSelector


def replay_probabilities(
    scores: ArrayLike, last: ArrayLike, now: float, *, beta: float = 0.1, rho: float = 0.1
) -> Numbers:
    """Return the probability of each task, based on its staleness and the rank of its score.

    P = (1 - rho) * rank^(-1/beta) / sum + rho * (now - last) / sum, where rank 1 has the largest
    score and ties are broken by index. If no task is stale, P is the first fraction alone.

    Args:
        scores: (n,) score of each task, at least 0; n >= 1.
        last: (n,) time of the last visit to each task, at most ``now``.
        now: the current time, in the same unit.
        beta: temperature of the ranks; lower values favour the first ranks more.
        rho: weight of the staleness term, in [0, 1].

    Returns:
        (n,) probabilities.

    Source: Prioritized Level Replay (Jiang et al., arXiv 2010.03934), sections 3.1 and 3.2.
    """
    values = np.asarray(scores, dtype=np.float64)
    rank = np.empty(len(values))
    rank[argsort_descending(values)] = np.arange(1, len(values) + 1)
    by_score = rank ** (-1.0 / beta)
    by_score /= by_score.sum()
    staleness = now - np.asarray(last, dtype=np.float64)
    if not staleness.any():
        return by_score
    mixed: Numbers = (1.0 - rho) * by_score + rho * staleness / staleness.sum()
    return mixed


class PLRConfig(FrozenModel):
    """Settings for a selector that ranks tasks by advantages and staleness (arXiv 2010.03934)."""

    kind: Literal["plr"] = "plr"
    beta: float = Field(default=0.1, gt=0)
    """Temperature of the ranks; lower values favour the first ranks more."""
    rho: float = Field(default=0.1, ge=0, le=1)
    """Weight of the time since a task's last visit."""

    def make(self) -> PrioritisedReplay:
        """Create a selector with these settings."""
        return PrioritisedReplay(self)


class PrioritisedReplay(TableSelector):
    """A selector that ranks tasks by the mean absolute advantage at their last visit.

    The original method scores a level by its mean absolute value error. Here the baseline is the
    group's mean, as in GRPO, so the score is the mean of |R - mean(R)|, which is 2p(1 - p) for a
    pass rate p. Tasks that were never visited come first. Time is counted in groups.
    """

    columns: ClassVar = {"score": 0.0, "last": -1.0}

    def __init__(self, config: PLRConfig) -> None:
        super().__init__()
        self.config = config
        self.n_groups = 0

    def weights(self) -> Numbers | None:
        """Return replay probabilities, or equal weights for unvisited tasks if there are any."""
        table, config = self.table, self.config
        unseen = table["last"] < 0
        if unseen.any():
            return unseen.astype(np.float64)
        return replay_probabilities(
            table["score"], table["last"], self.n_groups, beta=config.beta, rho=config.rho
        )

    def record_visit(self, row: int, outcomes: Numbers, group: Group) -> None:
        """Update the task's score: its mean absolute advantage."""
        self.n_groups += 1
        self.table["score"][row] = np.abs(outcomes - outcomes.mean()).mean()
        self.table["last"][row] = self.n_groups

    def metrics(self) -> dict[str, float]:
        """Return the mean score of the visited tasks."""
        seen = self.table["last"] >= 0
        return {"mean_score": float(self.table["score"][seen].mean()) if seen.any() else 0.0}

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {**super().state_dict(), "n_groups": self.n_groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        super().load_state_dict(state)
        self.n_groups = validate(Count, state["n_groups"])
