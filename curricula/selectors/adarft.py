"""A target difficulty that follows the reward, and the tasks nearest to it (AdaRFT)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from coevo_gym.core.task import FrozenModel
from coevo_gym.curricula.pool.table import Numbers
from coevo_gym.curricula.saved import Finite, read
from coevo_gym.curricula.selectors.rated import RatedSelector


def next_target(
    target: float, reward: float, *, alpha: float = 2.0, beta: float = 0.5, eta: float = 50.0
) -> float:
    """The next target difficulty.

    T' = clip(T + eta * tanh(alpha * (R - beta)), 0, 100).

    Args:
        target: T, in [0, 100].
        reward: R, mean outcome of the batch, in [0, 1].
        alpha: how soon the step saturates.
        beta: the outcome to aim at.
        eta: largest step.

    Source: AdaRFT (arXiv 2504.05520), with its default numbers.
    """
    return min(100.0, max(0.0, target + eta * math.tanh(alpha * (reward - beta))))


def nearest_to(
    difficulty: ArrayLike, target: float, n: int, *, visits: ArrayLike | None = None
) -> NDArray[np.int64]:
    """The ``n`` tasks whose difficulty is nearest to the target.

    Args:
        difficulty: (N,) difficulty of each task.
        target: where to look.
        n: how many; cut to N.
        visits: (N,) how often each was practised: of tasks that are equally near, those that were
            practised least go first. None for none. What is still equal goes by position.

    Returns:
        (n,) positions in rising order.

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


class AdaRFT(RatedSelector):
    """The tasks nearest to a target difficulty, which rises with success and falls with failure.

    A task's difficulty is 100 times the share of its first tries that failed. The target moves
    once for each ``batch`` groups of practice, whether they are recorded one by one or as a batch.

    Args:
        batch: how many tasks may be drawn at a time: the groups of a learner's step.
        target: the first target.
        alpha: see :func:`next_target`.
        beta: see :func:`next_target`.
        eta: see :func:`next_target`.
    """

    def __init__(
        self,
        batch: int,
        *,
        target: float = 0.0,
        alpha: float = 2.0,
        beta: float = 0.5,
        eta: float = 50.0,
    ) -> None:
        super().__init__()
        self.batch, self.target = batch, target
        self.alpha, self.beta, self.eta = alpha, beta, eta
        self._rewards: list[float] = []

    def rated_weights(self) -> Numbers:
        """1 for the tasks nearest to the target, else 0."""
        weights = np.zeros(len(self.table))
        difficulty = 100.0 * (1.0 - self.rates)
        near = nearest_to(difficulty, self.target, self.batch, visits=self.table["visits"])
        weights[near] = 1.0
        return weights

    def practise(self, row: int, outcomes: Numbers) -> None:
        """Collect a group's mean outcome; a whole batch of them moves the target."""
        self._rewards.append(float(outcomes.mean()))
        if len(self._rewards) == self.batch:
            reward = math.fsum(self._rewards) / self.batch
            self._rewards = []
            self.target = next_target(
                self.target, reward, alpha=self.alpha, beta=self.beta, eta=self.eta
            )

    def metrics(self) -> dict[str, float]:
        """The target, and how many tasks have a rate."""
        return {**super().metrics(), "target": self.target}

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        return {**super().state_dict(), "target": self.target, "rewards": list(self._rewards)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        super().load_state_dict(state)
        self.target = read(Finite, state["target"])
        self._rewards = read(list[Finite], state["rewards"])


class AdaRFTConfig(FrozenModel):
    """Tasks nearest to a target difficulty that follows the reward (AdaRFT, arXiv 2504.05520)."""

    kind: Literal["adarft"] = "adarft"
    batch: int = Field(default=16, ge=1)
    """How many tasks are near enough to be drawn: the groups of a learner's step."""
    target: float = Field(default=0.0, ge=0, le=100)
    """Difficulty to begin with, from 0 (always solved) to 100 (never)."""
    alpha: float = Field(default=2.0, gt=0)
    """How soon a step of the target saturates."""
    beta: float = Field(default=0.5, ge=0, le=1)
    """Mean outcome at which the target stays."""
    eta: float = Field(default=50.0, gt=0)
    """Largest step of the target."""

    def make(self) -> AdaRFT:
        """The selector."""
        return AdaRFT(
            self.batch, target=self.target, alpha=self.alpha, beta=self.beta, eta=self.eta
        )
