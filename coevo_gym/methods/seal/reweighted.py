"""Advantages weighed by what was noted of the turns, and the numbers of that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import Advantage, StepAdvantage
from coevo_gym.core.trajectory import Group
from coevo_gym.methods.seal.profile import TURN_LABEL, FailureProfile
from coevo_gym.methods.seal.utilities import CLIP, UTILITIES, Clip, trajectory_weight
from coevo_gym.methods.seal.weights import ApplyTo, Budget, applies, weights_of

Utility = Literal["fixed", "ema"]
"""What labels are worth: always the same, or what they have moved to."""
_UNCLIPPED: Clip = (-math.inf, math.inf)


class Weighing:
    """A memory of how the advantages of a step were weighed; the next step begins anew."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._weights: list[float] = []
        self._sums: list[float] = []
        self._clipped = 0

    def add(self, weights: Sequence[float], advantages: Sequence[float], clipped: int) -> None:
        """Take in a group.

        Args:
            weights: (K,) of its trajectories.
            advantages: (K,) weighed; of several a trajectory, their mean.
            clipped: how many of the weights were clipped.
        """
        self._weights += weights
        self._sums.append(math.fsum(advantages))
        self._clipped += clipped

    def note(self, notes: Notes) -> None:
        """See :class:`~coevo_gym.core.seams.Memory`; a step is about to be learned from."""
        self._forget()

    def metrics(self) -> dict[str, float]:
        """Of the latest step: sum and mean of weights, sums of advantages, and share clipped.

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
        """Nothing: it tells of one step, and checkpoints lie between steps."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self._forget()


class Reweighted:
    """A transform: each advantage times the weight of its trajectory, of successes too.

    Args:
        profile: knows what labels have become worth, for ``ema``.
        weighing: told what was done.
        utility: where the utilities come from.
        clip: lowest and highest weight.
        apply_to: which advantages are weighed.
        budget: how far weights may go from 1; None for as far as the clip.

    Source: Eq. 10 to 12 of SEAL (arXiv 2605.24426); ``ema``, ``apply_to`` and ``budget`` are of the
    authors' code alone.
    """

    def __init__(
        self,
        profile: FailureProfile,
        weighing: Weighing,
        *,
        utility: Utility = "fixed",
        clip: Clip = CLIP,
        apply_to: ApplyTo = "all",
        budget: Budget | None = None,
    ) -> None:
        self._profile, self._weighing = profile, weighing
        self._utility, self._clip, self._apply_to, self._budget = utility, clip, apply_to, budget

    @property
    def utilities(self) -> Mapping[str, float]:
        """What each label that counts is worth now."""
        return self._profile.utilities if self._utility == "ema" else UTILITIES

    def __call__(
        self, groups: Sequence[Group], notes: Notes, advantages: list[list[Advantage]]
    ) -> list[list[Advantage]]:
        """See :class:`~coevo_gym.core.seams.Transform`."""
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
        if isinstance(judged, (int, float)):
            return self._one(weight, judged)
        return [self._step(weight, each) for each in judged]

    def _step(self, weight: float, judged: StepAdvantage) -> StepAdvantage:
        if isinstance(judged, (int, float)):
            return self._one(weight, judged)
        return [self._one(weight, each) for each in judged]

    def _one(self, weight: float, advantage: float) -> float:
        return weight * advantage if applies(self._apply_to, advantage) else advantage


def _mean(advantage: Advantage) -> float:
    """Of several advantages of a trajectory, their mean; of a step with several, theirs before."""
    if isinstance(advantage, (int, float)):
        return advantage
    steps = [_mean(each) for each in advantage]
    return math.fsum(steps) / len(steps) if steps else 0.0
