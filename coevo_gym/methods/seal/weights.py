"""Weights of a group's trajectories, and its weighted advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from coevo_gym.methods.seal.utilities import CLIP, UTILITIES, Clip, trajectory_weight

ApplyTo = Literal["all", "negative", "positive"]
"""The trajectories to weight: all, or those that did worse or better than their group."""


def applies(apply_to: ApplyTo, advantage: float) -> bool:
    """Return True if an advantage is weighted."""
    match apply_to:
        case "all":
            return True
        case "negative":
            return advantage < 0
        case "positive":
            return advantage > 0


class WeightLimits(NamedTuple):
    """The limits of weights around 1.

    Attributes:
        strength: 0 makes all weights 1; 1 does not change them.
        normalise_mean: divide by their mean over the group's trajectories with labels that count.
    """

    strength: float = 1.0
    normalise_mean: bool = False


class Weighed(NamedTuple):
    """A group with weights.

    Attributes:
        weights: (K,) weight of each trajectory by its labels, also where it is not applied.
        advantages: (K,) advantages to be learned from.
    """

    weights: list[float]
    advantages: list[float]


def weighed(
    advantages: Sequence[float],
    labels: Sequence[Sequence[str]],
    *,
    utilities: Mapping[str, float] = UTILITIES,
    clip: Clip = CLIP,
    apply_to: ApplyTo = "all",
    budget: WeightLimits | None = None,
) -> Weighed:
    """Multiply each trajectory's advantage by its weight.

    The sum over the group, 0 before, is not 0 afterwards. This follows the paper, which also
    weights successes.

    Args:
        advantages: (K,) advantages of a group's trajectories.
        labels: the labels of each trajectory's turns.
        utilities: the utility of each label that counts.
        clip: lowest and highest weight, before the budget.
        apply_to: the trajectories to weight.
        budget: the limits of the weights; None to keep the weights.

    Example:
        >>> weighed([1.0, -1.0], [["pass"], ["spurious_tool_call"]]).advantages
        [1.0, -2.0]

    Source: Eq. 12; ``apply_to`` and ``budget`` are switches of the authors' code only.
    """
    weights = weights_of(labels, utilities=utilities, clip=clip, budget=budget)
    return Weighed(
        weights,
        [
            weight * advantage if applies(apply_to, advantage) else advantage
            for weight, advantage in zip(weights, advantages, strict=True)
        ],
    )


def weights_of(
    labels: Sequence[Sequence[str]],
    *,
    utilities: Mapping[str, float] = UTILITIES,
    clip: Clip = CLIP,
    budget: WeightLimits | None = None,
) -> list[float]:
    """Return (K,) weights of a group's trajectories; see :func:`weighed`."""
    weights = [trajectory_weight(each, utilities, clip) for each in labels]
    if budget is None:
        return weights
    counts = [any(label in utilities for label in each) for each in labels]
    return _within(budget, weights, counts)


def _within(budget: WeightLimits, weights: Sequence[float], counts: Sequence[bool]) -> list[float]:
    """Return the weights within a budget; those without a label that counts stay at 1."""
    found = [1.0 + budget.strength * (weight - 1.0) for weight in weights]
    labelled = [weight for weight, count in zip(found, counts, strict=True) if count]
    if not budget.normalise_mean or not labelled:
        return found
    mean = sum(labelled) / len(labelled)
    return [weight / mean if n else weight for weight, n in zip(found, counts, strict=True)]
