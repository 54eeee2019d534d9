"""Advantages weighted by the labels of turns, and the metrics of the weighting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import Advantage
from coevo_gym.core.trajectory import Group
from coevo_gym.methods.seal.profile import TURN_LABEL, FailureProfile
from coevo_gym.methods.seal.utilities import CLIP, UTILITIES, Clip, trajectory_weight
from coevo_gym.methods.seal.weights import ApplyTo, WeightLimits, applies, weights_of
from coevo_gym.trainers.spread import mapped

Utility = Literal["fixed", "ema"]
"""The utility of labels: fixed, or moving."""
_UNCLIPPED: Clip = (-math.inf, math.inf)


class Weighing:
    """A memory of the weights of a step's advantages; the next step starts again."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._weights: list[float] = []
        self._sums: list[float] = []
        self._clipped = 0

    def add(self, weights: Sequence[float], advantages: Sequence[float], clipped: int) -> None:
        """Add the weights of a group.

        Args:
            weights: (K,) weight of each trajectory.
            advantages: (K,) weighted advantages; the mean if a trajectory has several.
            clipped: number of weights that were clipped.
        """
        self._weights += weights
        self._sums.append(math.fsum(advantages))
        self._clipped += clipped

    def note(self, notes: Notes) -> None:
        """Prepare for a new step; see :class:`~coevo_gym.core.seams.Memory`."""
        self._forget()

    def metrics(self) -> dict[str, float]:
        """Return sum and mean of weights, sums of advantages, and share clipped, of the last step.

        ``sum_advantages`` is over all groups, ``sum_advantages_of_group`` the mean distance from 0
        of a group's sum, which is 0 without weights.
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
        """Return {}: the memory describes one step, and checkpoints are saved between steps."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._forget()


class Reweighted:
    """A transform that multiplies each advantage by the weight of its trajectory, of successes too.

    Args:
        profile: the moving utilities of labels, for ``ema``.
        weighing: the record of the weights.
        utility: the source of the utilities.
        clip: lowest and highest weight.
        apply_to: the advantages to weight.
        budget: the limits of the weights around 1; None for those of the clip alone.

    Source: Eq. 10 to 12 of SEAL (arXiv 2605.24426); ``ema``, ``apply_to`` and ``budget`` are in
    the authors' code only.
    """

    def __init__(
        self,
        profile: FailureProfile,
        weighing: Weighing,
        *,
        utility: Utility = "fixed",
        clip: Clip = CLIP,
        apply_to: ApplyTo = "all",
        budget: WeightLimits | None = None,
    ) -> None:
        self._profile, self._weighing = profile, weighing
        self._utility, self._clip, self._apply_to, self._budget = utility, clip, apply_to, budget

    @property
    def utilities(self) -> Mapping[str, float]:
        """Return the present utility of each label that counts."""
        return self._profile.utilities if self._utility == "ema" else UTILITIES

    def __call__(
        self, groups: Sequence[Group], notes: Notes, advantages: list[list[Advantage]]
    ) -> list[list[Advantage]]:
        """Multiply the advantages of a group; see :class:`~coevo_gym.core.seams.Transform`."""
        return [
            self._weigh(group, notes, judged)
            for group, judged in zip(groups, advantages, strict=True)
        ]

    def _weigh(self, group: Group, notes: Notes, judged: Sequence[Advantage]) -> list[Advantage]:
        labels = [
            [note.label for note in notes.of(TURN_LABEL, group.id, index)]
            for index in range(len(group.trajectories))
        ]
        utilities = self.utilities
        weights = weights_of(labels, utilities=utilities, clip=self._clip, budget=self._budget)
        found = [self._times(*pair) for pair in zip(weights, judged, strict=True)]
        asked = [trajectory_weight(each, utilities, _UNCLIPPED) for each in labels]
        low, high = self._clip
        clipped = sum(not low <= weight <= high for weight in asked)
        self._weighing.add(weights, [_mean(each) for each in found], clipped)
        return found

    def _times(self, weight: float, judged: Advantage) -> Advantage:
        return mapped(judged, lambda a: weight * a if applies(self._apply_to, a) else a)


def _mean(advantage: Advantage) -> float:
    """Return the mean of a trajectory's advantages; a step may have several."""
    if isinstance(advantage, (int, float)):
        return advantage
    steps = [_mean(each) for each in advantage]
    return math.fsum(steps) / len(steps) if steps else 0.0
