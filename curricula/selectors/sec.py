"""SEC: a bandit over difficulty ranges, with the absolute advantage as its reward."""

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
from coevo_gym.curricula.saved import Finite, validate
from coevo_gym.curricula.selectors.base import RatedSelector

EPS = 1e-6


def mean_absolute_advantage(outcomes: ArrayLike) -> float:
    """Return the mean absolute advantage in a group.

    A = (R - mean) / (std + 1e-6), with the population standard deviation. For outcomes of 0 and 1,
    the result is about 2 sqrt(p(1 - p)), which is largest if half of the episodes succeed.

    Args:
        outcomes: (K,) outcomes of the group's episodes.
    """
    values = np.asarray(outcomes, dtype=np.float64)
    return float(np.abs((values - values.mean()) / (values.std() + EPS)).mean())


def update_value(value: float, reward: float, *, rate: float = 0.5) -> float:
    """Update an arm's value with a reward: Q' = rate * reward + (1 - rate) * Q."""
    return rate * reward + (1.0 - rate) * value


def arm_probabilities(values: ArrayLike, *, temperature: float = 0.5) -> Numbers:
    """Return the probability of each arm: the softmax of Q / temperature.

    Args:
        values: (n,) Q of each arm, n >= 1.
        temperature: above 0; higher values make the probabilities more equal.
    """
    scaled = np.asarray(values, dtype=np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    chances: Numbers = weights / weights.sum()
    return chances


class SECConfig(FrozenModel):
    """Settings for a bandit over difficulty ranges (SEC, arXiv 2505.14970)."""

    kind: Literal["sec"] = "sec"
    arms: int = Field(default=5, ge=1)
    """Number of difficulty ranges."""
    rate: float = Field(default=0.5, gt=0, le=1)
    """Weight of the latest reward in an arm's value."""
    temperature: float = Field(default=0.5, gt=0)
    """Softmax temperature; higher values make the arms' probabilities more equal."""

    def make(self) -> BanditOfDifficulty:
        """Create a selector with these settings."""
        return BanditOfDifficulty(self)


class BanditOfDifficulty(RatedSelector):
    """A bandit over difficulty ranges that draws a range by its value, and then one of its tasks.

    The arms are equal ranges of the share of failed first attempts; arms without tasks are ignored.
    An arm's tasks are drawn uniformly. Once per recorded batch, an arm is rewarded with the mean
    absolute advantage of its groups in the batch.

    Source: Self-Evolving Curriculum (arXiv 2505.14970), with one task type and difficulties as
        arms.
    """

    def __init__(self, config: SECConfig) -> None:
        super().__init__()
        self.config = config
        self.values = np.zeros(config.arms)
        self._rewards: list[tuple[int, float]] = []

    def rated_weights(self) -> Numbers:
        """Return the probability of each task's arm, divided by the number of tasks in the arm."""
        arms = self._arms(self.rates)
        sizes = np.bincount(arms, minlength=len(self.values))
        chances = np.zeros(len(self.values))
        filled = np.flatnonzero(sizes)
        temperature = self.config.temperature
        chances[filled] = arm_probabilities(self.values[filled], temperature=temperature)
        each = chances / np.maximum(sizes, 1)
        return np.asarray(each[arms])

    def record(self, groups: Sequence[Group]) -> None:
        """Record a batch of groups and reward the arms of its tasks."""
        super().record(groups)
        rewards, self._rewards = self._rewards, []
        earned: dict[int, list[float]] = {}
        arms = self._arms(self.rates)
        for row, reward in rewards:
            earned.setdefault(int(arms[row]), []).append(reward)
        for arm, of_arm in earned.items():
            reward = float(np.mean(of_arm))
            self.values[arm] = update_value(self.values[arm], reward, rate=self.config.rate)

    def record_rated_visit(self, row: int, outcomes: Numbers) -> None:
        """Store a group's reward until the batch is complete."""
        self._rewards.append((row, mean_absolute_advantage(outcomes)))

    def _arms(self, rate: ArrayLike) -> NDArray[np.int64]:
        """Return the bandit arm for each pass rate; arm 0 has the easiest tasks."""
        n = len(self.values)
        return np.minimum((1.0 - np.asarray(rate)) * n, n - 1).astype(np.int64)

    def metrics(self) -> dict[str, float]:
        """Return the arms' values, and the number and mean pass rate of the rated tasks."""
        values = {f"arm_{arm}": float(value) for arm, value in enumerate(self.values)}
        return {**super().metrics(), **values}

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {**super().state_dict(), "values": self.values.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        super().load_state_dict(state)
        values = validate(list[Finite], state["values"])
        if len(values) != len(self.values):
            raise ConfigError(
                f"The saved state has {len(values)} arms, but this selector has {len(self.values)}."
            )
        self.values = np.array(values)
