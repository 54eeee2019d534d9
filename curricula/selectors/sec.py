"""A bandit over difficulties, paid in advantages (SEC)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenModel
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.pool.table import Numbers
from coevo_gym.curricula.saved import Finite, read
from coevo_gym.curricula.selectors.rated import RatedSelector

EPS = 1e-6


def mean_absolute_advantage(outcomes: ArrayLike) -> float:
    """Mean of abs(A) over a group, A = (R - mean) / (std + 1e-6) with the population's std.

    About 2 sqrt(p(1 - p)) for outcomes of 0 and 1: largest where half of the episodes succeed.

    Args:
        outcomes: (K,) outcomes of one group.
    """
    values = np.asarray(outcomes, dtype=np.float64)
    return float(np.abs((values - values.mean()) / (values.std() + EPS)).mean())


def paid(value: float, reward: float, *, rate: float = 0.5) -> float:
    """An arm's value after a reward: Q' = rate * reward + (1 - rate) * Q."""
    return rate * reward + (1.0 - rate) * value


def arm_probabilities(values: ArrayLike, *, temperature: float = 0.5) -> Numbers:
    """Chance of each arm: the softmax of Q / temperature.

    Args:
        values: (n,) Q of each arm, n >= 1.
        temperature: above 0; the higher, the more alike.
    """
    scaled = np.asarray(values, dtype=np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    chances: Numbers = weights / weights.sum()
    return chances


class BanditOfDifficulty(RatedSelector):
    """Draws an arm by its value, and a task of it uniformly; an arm is a range of difficulty.

    Arms cut the share of first tries that failed into equal ranges; arms without tasks are left
    out. An arm is paid, once for each batch that is recorded, the mean absolute advantage of its
    groups in the batch.

    Args:
        arms: how many ranges.
        rate: see :func:`paid`.
        temperature: see :func:`arm_probabilities`.

    Source: Self-Evolving Curriculum (arXiv 2505.14970), for one type of task and levels of
    difficulty as arms.
    """

    def __init__(self, arms: int = 5, *, rate: float = 0.5, temperature: float = 0.5) -> None:
        super().__init__()
        self.rate, self.temperature = rate, temperature
        self.values = np.zeros(arms)
        self._rewards: list[tuple[int, float]] = []

    def rated_weights(self) -> Numbers:
        """(n,) chance of a task's arm, divided by the number of tasks in it."""
        arms = self._arm(self.rates)
        sizes = np.bincount(arms, minlength=len(self.values))
        chances = np.zeros(len(self.values))
        filled = np.flatnonzero(sizes)
        chances[filled] = arm_probabilities(self.values[filled], temperature=self.temperature)
        each = chances / np.maximum(sizes, 1)
        return np.asarray(each[arms])

    def record(self, groups: Sequence[Group]) -> None:
        """Take in a batch, and pay its arms."""
        super().record(groups)
        rewards, self._rewards = self._rewards, []
        earned: dict[int, list[float]] = {}
        for row, reward in rewards:
            earned.setdefault(int(self._arm(self.rate_of(row))), []).append(reward)
        for arm, of_arm in earned.items():
            self.values[arm] = paid(self.values[arm], float(np.mean(of_arm)), rate=self.rate)

    def practise(self, row: int, outcomes: Numbers) -> None:
        """Keep what the group earns until the batch is over."""
        self._rewards.append((row, mean_absolute_advantage(outcomes)))

    def _arm(self, rate: ArrayLike) -> NDArray[np.int64]:
        """The arm of tasks with this pass rate, 0 for the easiest."""
        n = len(self.values)
        return np.minimum((1.0 - np.asarray(rate)) * n, n - 1).astype(np.int64)

    def metrics(self) -> dict[str, float]:
        """The value of each arm, and how many tasks have a rate."""
        values = {f"arm_{arm}": float(value) for arm, value in enumerate(self.values)}
        return {**super().metrics(), **values}

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        return {**super().state_dict(), "values": self.values.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        super().load_state_dict(state)
        values = read(list[Finite], state["values"])
        if len(values) != len(self.values):
            raise ConfigError(f"The state has {len(values)} arms, not {len(self.values)}.")
        self.values = np.array(values)


class SECConfig(FrozenModel):
    """A bandit over ranges of difficulty (SEC, arXiv 2505.14970)."""

    kind: Literal["sec"] = "sec"
    arms: int = Field(default=5, ge=1)
    """Ranges of difficulty."""
    rate: float = Field(default=0.5, gt=0, le=1)
    """How much of an arm's value is the latest reward."""
    temperature: float = Field(default=0.5, gt=0)
    """The higher, the more alike the arms are drawn."""

    def make(self) -> BanditOfDifficulty:
        """The selector."""
        return BanditOfDifficulty(self.arms, rate=self.rate, temperature=self.temperature)
