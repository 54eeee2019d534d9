"""Weights that SEAL assigns to tasks and trajectories."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import Advantage
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.pool.table import Numbers
from coevo_gym.curricula.selectors.base import TableSelector
from coevo_gym.methods.seal.profile import (
    CLIP,
    FAILURES,
    TURN_LABEL,
    UTILITIES,
    Clip,
    FailureProfile,
    WindowLabel,
    clip_value,
    trajectory_weight,
)
from coevo_gym.trainers.token_advantages import map_advantage


def target_weight(
    label: str,
    seen: WindowLabel,
    *,
    min_samples: int = 8,
    alpha: float = 1.0,
    confident: int = 32,
    clip: Clip = CLIP,
) -> float | None:
    """Return a task's target weight: clip(1 + alpha (1 - r) min(1, n / confident)).

    Args:
        label: the task's last label.
        seen: number of turns n and mean success r for this label across all tasks.
        min_samples: minimum number of turns with the label.
        alpha: maximum distance of the target from 1.
        confident: minimum count at which the statistics have their full effect.
        clip: lowest and highest target.

    Returns:
        The target, or None if the label does not stand for a failure or was too rare.

    Source: SEAL's code; the paper does not include it.
    """
    if label not in FAILURES or seen.turns < min_samples:
        return None
    sure = min(1.0, seen.turns / confident)
    return clip_value(1.0 + alpha * (1.0 - seen.mean) * sure, clip)


class LastFailure(TableSelector):
    """A selector that favours tasks whose latest failure mode is rarely followed by success.

    A task has weight 1 if it was never trained on, had no failure at its last visit, or had a
    failure that is too rare for statistics.

    Source: SEAL's code; the paper (arXiv 2605.24426) does not include it.
    """

    columns: ClassVar = {"failure": 0.0}
    """The column with the label's position in ``FAILURES``, counted from 1, or 0 for no failure."""

    def __init__(self, profile: FailureProfile) -> None:
        super().__init__()
        self._profile = profile

    def record_visit(self, row: int, outcomes: Numbers, group: Group) -> None:
        """Clear the failure recorded on an earlier visit to a task."""
        self.table["failure"][row] = 0.0

    def note(self, notes: Notes) -> None:
        """Record each task's latest failure from the notes of a learner step."""
        for note in notes:
            row = self.table.row_index(note.task_id)
            if row is not None and note.kind == TURN_LABEL and note.label in FAILURES:
                self.table["failure"][row] = 1 + FAILURES.index(note.label)

    def weights(self) -> Numbers:
        """Return the tasks' sampling weights, between 1 and 2, as an (n,) array."""
        seen, config = self._profile.total, self._profile.config
        targets = [
            target_weight(label, seen[label], alpha=config.alpha, confident=config.confident)
            if label in seen
            else None
            for label in FAILURES
        ]
        weights = np.array([1.0, *(1.0 if target is None else target for target in targets)])
        return weights[self.table["failure"].astype(np.int64)]

    def metrics(self) -> dict[str, float]:
        """Return the share of tasks whose last visit ended in failure."""
        failed = self.table["failure"] > 0
        return {"failed": float(failed.mean()) if len(failed) else 0.0}


ApplyTo = Literal["all", "negative", "positive"]
"""The advantages to weight: all, or only negative or positive advantages."""


def applies(apply_to: ApplyTo, advantage: float) -> bool:
    """Return True if the sign of an advantage matches the setting ``apply_to``."""
    match apply_to:
        case "all":
            return True
        case "negative":
            return advantage < 0
        case "positive":
            return advantage > 0


class WeightLimits(NamedTuple):
    """Limits that keep trajectory weights close to 1.

    Attributes:
        strength: share of the distance from 1 to keep; 0 makes all weights 1.
        normalise_mean: True to divide weights by their mean over the group's labelled trajectories.
    """

    strength: float = 1.0
    normalise_mean: bool = False


def group_weights(
    labels: Sequence[Sequence[str]],
    *,
    utilities: Mapping[str, float] = UTILITIES,
    clip: Clip = CLIP,
    budget: WeightLimits | None = None,
) -> list[float]:
    """Return the weights of a group's K trajectories.

    Args:
        labels: (K,) the labels of each trajectory's turns.
        utilities: the utility of each label that counts.
        clip: lowest and highest weight, before the budget.
        budget: limits on the weights; None for no limits.
    """
    weights = [trajectory_weight(each, utilities, clip) for each in labels]
    if budget is None:
        return weights
    counts = [any(label in utilities for label in each) for each in labels]
    return _limit_weights(budget, weights, counts)


def weight_advantages(
    advantages: Sequence[Advantage], weights: Sequence[float], apply_to: ApplyTo = "all"
) -> list[Advantage]:
    """Multiply advantages by their trajectories' weights. ``apply_to`` selects the advantages.

    Afterwards, a group's advantages no longer sum to 0. As in the paper, successes are also
    weighted.

    Example:
        >>> weight_advantages([1.0, -1.0], group_weights([["pass"], ["spurious_tool_call"]]))
        [1.0, -2.0]

    Source: Eq. 12; ``apply_to`` and budgets only exist in the authors' code.
    """

    def times(weight: float, judged: Advantage) -> Advantage:
        return map_advantage(judged, lambda a: weight * a if applies(apply_to, a) else a)

    return [times(*pair) for pair in zip(weights, advantages, strict=True)]


def _limit_weights(
    budget: WeightLimits, weights: Sequence[float], counts: Sequence[bool]
) -> list[float]:
    """Limit trajectory weights as configured. Trajectories without counted labels keep weight 1."""
    values = [1.0 + budget.strength * (weight - 1.0) for weight in weights]
    labelled = [weight for weight, count in zip(values, counts, strict=True) if count]
    if not budget.normalise_mean or not labelled:
        return values
    mean = sum(labelled) / len(labelled)
    return [weight / mean if n else weight for weight, n in zip(values, counts, strict=True)]


Utility = Literal["fixed", "ema"]
"""The kinds of label utilities: fixed or moving."""
_UNCLIPPED: Clip = (-math.inf, math.inf)


class Weighing:
    """A record of the latest learner step's trajectory weights, reported as metrics."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._weights: list[float] = []
        self._sums: list[float] = []
        self._clipped = 0

    def record_group(
        self, weights: Sequence[float], advantages: Sequence[float], clipped: int
    ) -> None:
        """Record the weights and weighted advantages of a group's trajectories.

        Args:
            weights: (K,) weight of each trajectory.
            advantages: (K,) weighted advantage of each trajectory, or its mean over steps.
            clipped: number of weights that were clipped.
        """
        self._weights += weights
        self._sums.append(math.fsum(advantages))
        self._clipped += clipped

    def note(self, notes: Notes) -> None:
        """Clear trajectory weights for a new step; see :class:`~coevo_gym.core.seams.Memory`."""
        self._clear()

    def metrics(self) -> dict[str, float]:
        """Return metrics for the latest step's trajectory weights and weighted advantages.

        ``sum_advantages`` is the sum over all groups, and ``sum_advantages_of_group`` the mean
        distance of a group's sum from 0, which would be 0 without weights.
        """
        n = len(self._weights)
        return {
            "sum_w": math.fsum(self._weights),
            "mean_w": math.fsum(self._weights) / n if n else 1.0,
            "sum_advantages": math.fsum(self._sums),
            "sum_advantages_of_group": (
                math.fsum(map(abs, self._sums)) / len(self._sums) if self._sums else 0.0
            ),
            "share_clipped": self._clipped / n if n else 0.0,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dict, because trajectory weights are not kept between steps."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Clear the trajectory weights, because a saved state contains none."""
        self._clear()


@dataclass(frozen=True)
class Reweighted:
    """A transform that multiplies each trajectory's advantages by the trajectory's weight.

    Attributes:
        profile: provides the labels' moving utilities for ``ema``.
        weighing: records the weights.
        utility: the kind of label utilities.
        clip: lowest and highest weight.
        apply_to: the advantages to weight.
        budget: limits on how far weights may be from 1; None if only ``clip`` applies.

    Source: Eq. 10 to 12 in SEAL (arXiv 2605.24426); ``ema``, ``apply_to`` and ``budget`` are from
        the authors' code.
    """

    profile: FailureProfile
    weighing: Weighing
    utility: Utility = "fixed"
    clip: Clip = CLIP
    apply_to: ApplyTo = "all"
    budget: WeightLimits | None = None

    @property
    def utilities(self) -> Mapping[str, float]:
        """Return the current utilities, keyed by label."""
        return self.profile.utilities if self.utility == "ema" else UTILITIES

    def __call__(
        self, groups: Sequence[Group], notes: Notes, advantages: list[list[Advantage]]
    ) -> list[list[Advantage]]:
        """Weight the groups' advantages; see :class:`~coevo_gym.core.seams.Transform`."""
        return [
            self._weight_group(group, notes, judged)
            for group, judged in zip(groups, advantages, strict=True)
        ]

    def _weight_group(
        self, group: Group, notes: Notes, judged: Sequence[Advantage]
    ) -> list[Advantage]:
        labels = [
            [note.label for note in notes.of(TURN_LABEL, group.id, index)]
            for index in range(len(group.trajectories))
        ]
        utilities = self.utilities
        weights = group_weights(labels, utilities=utilities, clip=self.clip, budget=self.budget)
        advantages = weight_advantages(judged, weights, self.apply_to)
        asked = [trajectory_weight(each, utilities, _UNCLIPPED) for each in labels]
        low, high = self.clip
        clipped = sum(not low <= weight <= high for weight in asked)
        self.weighing.record_group(weights, [_mean_advantage(each) for each in advantages], clipped)
        return advantages


def _mean_advantage(advantage: Advantage) -> float:
    """Return the mean of a trajectory's advantages. They may be nested by step."""
    if isinstance(advantage, (int, float)):
        return advantage
    steps = [_mean_advantage(each) for each in advantage]
    return math.fsum(steps) / len(steps) if steps else 0.0
