"""Advantages that mix step labels (attribution) with the outcome of the trajectory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from statistics import fmean
from typing import Literal

from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import Advantage
from coevo_gym.core.trajectory import Group
from coevo_gym.trainers.advantages import discounted_returns
from coevo_gym.trainers.credit import Outcome

ATTRIBUTION = "attribution"
"""The kind of note that labels steps."""
ATTRIBUTION_BY_MODEL = "attribution_by_model"
"""The kind of note in which a model labels steps for comparison with labels from replays."""
GOOD, BAD, NO_LABEL = 1, -1, 0
"""The labels that a step can have."""
Scheme = Literal["decoupled", "allocation"]
"""Schemes for mixing labels and outcomes: standardise and add them (``decoupled``), or use the
labels to divide the outcome's sign among the steps, standardise these shares, and add the outcome
(``allocation``)."""

_EPS = 1e-8
_MIN_DEVIATION = 1e-6
"""Standard deviations below this value count as 0."""
_ODD = 0.2
"""Weight of a step whose label contradicts the outcome, in the allocation scheme."""

Labels = Sequence[Sequence[int]]


def decoupled_advantages(
    labels: Labels,
    outcomes: Sequence[float],
    valid: Sequence[bool] | None = None,
    *,
    alpha: float = 0.1,
    length_norm: bool = False,
    attribution: bool = True,
    outcome: bool = True,
) -> list[list[float]]:
    """Compute each step's advantage from its label, later labels, and the trajectory's outcome.

    Labels and outcomes are standardised within the group. The labels' mean and deviation are
    computed from the trajectories' mean labels, so that long trajectories do not count more.

    Args:
        labels: (K, T_k) label of each step; steps labelled 0 get no attribution.
        outcomes: (K,) reward of each trajectory, on any scale.
        valid: (K,) False for lost trajectories, which are excluded from all means.
        alpha: weight of attribution relative to the outcome.
        length_norm: True to divide the attribution of T-step trajectories by the square root of T.
        attribution: True to use the labels.
        outcome: True to use the outcomes.

    Returns:
        (K, T_k) advantages, which are 0 in lost trajectories. Without length_norm, the sum of
        labels grows with T and outweighs the outcome if alpha times T is above 1.

    Example:
        >>> judged = decoupled_advantages([[1, 1], [1, -1]], [0.0, 0.0], alpha=0.5)
        >>> [[round(a, 6) for a in row] for row in judged]
        [[1.0, 0.5], [-1.0, -1.5]]

    Source: AgentEvolver (arXiv 2511.10395), Eq. 18 to 21.
    """
    mask = [True] * len(outcomes) if valid is None else valid
    of_labels = _Scale(_mean_labels(labels, mask)) if attribution else _Scale([])
    of_outcomes = _Scale([*compress(outcomes, mask)]) if outcome else _Scale([])
    advantages = []
    for row, reward, counts in zip(labels, outcomes, mask, strict=True):
        weight = alpha / math.sqrt(len(row)) if length_norm and row else alpha
        earned = [weight * of_labels(label) if label and counts else 0.0 for label in row]
        if row and counts:
            earned[-1] += of_outcomes(reward)
        advantages.append(discounted_returns(earned, 1.0))
    return advantages


def allocation_advantages(
    labels: Labels,
    outcomes: Sequence[float],
    valid: Sequence[bool] | None = None,
    *,
    alpha: float = 0.1,
    odd: float = _ODD,
) -> list[list[float]]:
    """Compute step advantages from the outcome and each step's share of the outcome's sign.

    The sign is +1 if the outcome is above 0, and -1 otherwise. Steps whose label agrees with the
    sign get a full share, and other labelled steps a share of ``odd``. Without labels, all steps
    get the same share. Shares are then standardised: their mean is the mean over trajectories of
    each mean share, and their variance the mean over trajectories of the mean squared distance from
    it. A step's reward is alpha times its standardised share; the last step's reward also contains
    the outcome, standardised within the group. Rewards are summed from each step to the end.

    Args:
        labels: (K, T_k) label of each step; steps labelled 0 get nothing if other steps are
            labelled.
        outcomes: (K,) reward of each trajectory.
        valid: (K,) False for lost trajectories, which are excluded from all means.
        alpha: weight of the shares relative to the outcome.
        odd: share of a step whose label contradicts the outcome, relative to a full share.

    Returns:
        (K, T_k) advantages, which are 0 in lost trajectories. Equal shares earn 0.

    Example:
        >>> judged = allocation_advantages([[1, -1], [-1, -1, 1]], [1.0, 0.0])
        >>> [[round(a, 6) for a in row] for row in judged]
        [[1.168752, 1.016875], [-1.253128, -1.144206, -1.035285]]

    Source: the ``allocation`` scheme in AgentEvolver's published code
    (``module/adv_processor/adca_grpo.py``), with its ``orm_distribution = "last_step"``.
    """
    mask = [True] * len(outcomes) if valid is None else valid
    shares = [
        _outcome_shares(row, 1 if reward > 0 else -1, odd) if counts else []
        for row, reward, counts in zip(labels, outcomes, mask, strict=True)
    ]
    labelled = [[one for one in row if one is not None] for row in shares]
    used = [row for row in labelled if row]
    mean = fmean(map(fmean, used)) if used else 0.0
    variance = fmean(fmean((one - mean) ** 2 for one in row) for row in used) if used else 0.0
    spread = math.sqrt(variance) >= _MIN_DEVIATION
    weight = alpha / math.sqrt(variance + _EPS) if spread else 0.0
    of_outcomes = _Scale([*compress(outcomes, mask)])
    advantages = []
    for row, of_steps, reward in zip(labels, shares, outcomes, strict=True):
        earned = [0.0 if one is None else weight * (one - mean) for one in of_steps]
        if earned:
            earned[-1] += of_outcomes(reward)
        advantages.append(discounted_returns(earned or [0.0] * len(row), 1.0))
    return advantages


def _outcome_shares(row: Sequence[int], sign: int, odd: float) -> list[float | None]:
    """Return each step's share of the outcome, with None for steps that get no share."""
    if not any(row):
        return [sign / len(row) for _ in row]
    weights = [None if not label else 1.0 if label == sign else odd for label in row]
    total = math.fsum(weight for weight in weights if weight is not None)
    return [None if weight is None else sign * weight / total for weight in weights]


def _mean_labels(labels: Labels, mask: Sequence[bool]) -> list[float]:
    """Return the mean label of each trajectory that has labels and was not lost."""
    labelled = [[label for label in row if label] for row in compress(labels, mask)]
    return [fmean(row) for row in labelled if row]


class _Scale:
    """A function that computes z-scores, or returns 0 if all reference numbers are equal."""

    def __init__(self, numbers: Sequence[float]) -> None:
        self._mean = fmean(numbers) if numbers else 0.0
        squares = [(number - self._mean) ** 2 for number in numbers]
        self._deviation = math.sqrt(fmean(squares)) if squares else 0.0

    def __call__(self, number: float) -> float:
        if self._deviation < _MIN_DEVIATION:
            return 0.0
        return (number - self._mean) / (self._deviation + _EPS)


@dataclass(frozen=True)
class AttributionCredit:
    """An estimator that computes one advantage per step from step labels and outcomes.

    A step without a note has no label. Lost trajectories get 0 and are excluded from all means.

    Attributes:
        reward: returns a trajectory's outcome.
        alpha: weight of attribution.
        length_norm: True to divide attribution by the square root of a trajectory's steps.
        attribution: True to use labels. Without labels, the outcome reaches all steps, standardised
            with the population deviation, whereas ``GroupRelative`` uses the sample deviation.
        outcome: True to use outcomes.
        scheme: the scheme for mixing labels and outcomes. Of the settings above, ``allocation``
            uses only ``alpha``.
    """

    reward: Outcome = field(default_factory=Outcome)
    alpha: float = 0.1
    length_norm: bool = False
    attribution: bool = True
    outcome: bool = True
    scheme: Scheme = "decoupled"

    def __call__(self, groups: Sequence[Group], notes: Notes) -> list[list[Advantage]]:
        """Return the advantages of the groups according to the scheme."""
        return [[*self._group_advantages(group, notes)] for group in groups]

    def _group_advantages(self, group: Group, notes: Notes) -> list[list[float]]:
        labels = [
            labels_of(notes, group.id, index, len(trajectory.steps))
            for index, trajectory in enumerate(group.trajectories)
        ]
        outcomes = [self.reward(trajectory) for trajectory in group.trajectories]
        return self.compute_advantages(
            labels, outcomes, [not t.end_reason.is_lost for t in group.trajectories]
        )

    def compute_advantages(
        self, labels: Labels, outcomes: Sequence[float], valid: Sequence[bool] | None = None
    ) -> list[list[float]]:
        """Compute a group's advantages from its labels and outcomes."""
        if self.scheme == "allocation":
            return allocation_advantages(labels, outcomes, valid, alpha=self.alpha)
        return decoupled_advantages(
            labels,
            outcomes,
            valid,
            alpha=self.alpha,
            length_norm=self.length_norm,
            attribution=self.attribution,
            outcome=self.outcome,
        )


def labels_of(notes: Notes, group_id: str, index: int, n_steps: int) -> list[int]:
    """Return the label of each step in a trajectory."""
    labels = [NO_LABEL] * n_steps
    for note in notes.of(ATTRIBUTION, group_id, index):
        if note.step >= 0:
            labels[note.step] = int(note.value)
    return labels
