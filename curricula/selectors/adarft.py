"""AdaRFT: a selector with a target difficulty that adapts to the reward."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from coevo_gym.core.task import FrozenModel
from coevo_gym.curricula.pool.table import Numbers
from coevo_gym.curricula.saved import Finite, validate
from coevo_gym.curricula.selectors.base import RatedSelector


def next_target(
    target: float, reward: float, *, alpha: float = 2.0, beta: float = 0.5, eta: float = 50.0
) -> float:
    """Return the next target difficulty.

    T' = clip(T + eta * tanh(alpha * (R - beta)), 0, 100).

    Args:
        target: T, in [0, 100].
        reward: R, mean outcome of the batch, in [0, 1].
        alpha: steepness of the adjustment.
        beta: mean outcome at which the target stays the same.
        eta: maximum adjustment.

    Source: AdaRFT (arXiv 2504.05520), with its default values.
    """
    return min(100.0, max(0.0, target + eta * math.tanh(alpha * (reward - beta))))


def nearest_to(
    difficulty: ArrayLike, target: float, n: int, *, visits: ArrayLike | None = None
) -> NDArray[np.int64]:
    """Return the ``n`` tasks whose difficulty is nearest to the target.

    Args:
        difficulty: (N,) difficulty of each task.
        target: the target difficulty.
        n: number of tasks, at most N.
        visits: (N,) number of visits to each task. In a tie, the least visited tasks come first,
            then tasks with a lower index. None for no visits.

    Returns:
        (n,) indices in ascending order.

    Example:
        >>> nearest_to([10, 20, 30, 40], 25.0, 3).tolist()
        [0, 1, 2]
    """
    distance = np.abs(np.asarray(difficulty, dtype=np.float64) - target)
    n = min(n, len(distance))
    if not n:
        return np.empty(0, dtype=np.int64)
    furthest = np.partition(distance, n - 1)[n - 1]
    near = np.flatnonzero(distance <= furthest)
    seen = np.zeros(len(near)) if visits is None else np.asarray(visits, dtype=np.float64)[near]
    order = np.lexsort((seen, distance[near]))
    return np.sort(near[order[:n]])


class AdaRFTConfig(FrozenModel):
    """Settings for a selector whose target difficulty follows the reward (arXiv 2504.05520)."""

    kind: Literal["adarft"] = "adarft"
    batch: int = Field(default=16, ge=1)
    """Number of tasks nearest to the target to draw from; use the learner's groups per step."""
    target: float = Field(default=0.0, ge=0, le=100)
    """Initial target difficulty, from 0 (always solved) to 100 (never solved)."""
    alpha: float = Field(default=2.0, gt=0)
    """Steepness of the target's adjustment."""
    beta: float = Field(default=0.5, ge=0, le=1)
    """Mean outcome at which the target stays the same."""
    eta: float = Field(default=50.0, gt=0)
    """Maximum adjustment of the target."""

    def make(self) -> AdaRFT:
        """Create a selector with these settings."""
        return AdaRFT(self)


class AdaRFT(RatedSelector):
    """A selector that chooses the tasks nearest to an adaptive target difficulty.

    A task's difficulty is 100 times the share of first attempts that failed. The target moves up
    with success and down with failure, once per ``batch`` training groups, whether the groups are
    recorded one by one or as a batch.
    """

    def __init__(self, config: AdaRFTConfig) -> None:
        super().__init__()
        self.config, self.target = config, config.target
        self._rewards: list[float] = []

    def rated_weights(self) -> Numbers:
        """Return a weight of 1 for the tasks nearest to the target and 0 for all others."""
        weights = np.zeros(len(self.table))
        difficulty = 100.0 * (1.0 - self.rates)
        near = nearest_to(difficulty, self.target, self.config.batch, visits=self.table["visits"])
        weights[near] = 1.0
        return weights

    def record_rated_visit(self, row: int, outcomes: Numbers) -> None:
        """Record a group's mean outcome. A full batch of outcomes moves the target."""
        config = self.config
        self._rewards.append(float(outcomes.mean()))
        if len(self._rewards) == config.batch:
            reward = math.fsum(self._rewards) / config.batch
            self._rewards = []
            self.target = next_target(
                self.target, reward, alpha=config.alpha, beta=config.beta, eta=config.eta
            )

    def metrics(self) -> dict[str, float]:
        """Return the target difficulty, and the number and mean pass rate of the rated tasks."""
        return {**super().metrics(), "target": self.target}

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {**super().state_dict(), "target": self.target, "rewards": list(self._rewards)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        super().load_state_dict(state)
        self.target = validate(Finite, state["target"])
        self._rewards = validate(list[Finite], state["rewards"])
