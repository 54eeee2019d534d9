"""The utility of each label, and the weight of a trajectory by its labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from coevo_gym.envs.diagnosis import NO_FAILURES, TurnLabel

Clip = tuple[float, float]
"""Lowest and highest weight."""

CLIP: Clip = (0.5, 2.0)

_UTILITIES: Mapping[str, float] = {
    TurnLabel.INVALID_TOOL_CALL: 2.0,
    TurnLabel.SPURIOUS_TOOL_CALL: 2.0,
    TurnLabel.ARGUMENT_MISMATCH: 1.8,
    TurnLabel.CORRECT_ABSTENTION: 1.8,
    TurnLabel.MISSING_TOOL_CALL: 1.5,
    TurnLabel.EMPTY_TURN: 1.5,
    TurnLabel.RECOVERY_FAILURE: 1.2,
    TurnLabel.STATE_MISMATCH: 1.0,
    TurnLabel.PASS: 1.0,
    TurnLabel.RESPONSE_MISMATCH: 0.9,
    "instance_mismatch": 0.6,  # only the authors' own benchmark code emits it
}
UTILITIES: Mapping[str, float] = MappingProxyType({str(x): u for x, u in _UTILITIES.items()})
"""Utility of each label that counts; all others, such as ``not_reached``, are ignored.

The values are from the paper's Table 6, and ours for the labels that are only in its Table 5.
"""

FAILURES: tuple[str, ...] = tuple(x for x in UTILITIES if x not in NO_FAILURES)
"""The labels that count and stand for a failure, those of the highest utility first."""


def clipped(value: float, clip: Clip = CLIP) -> float:
    """Return the number of the range that is nearest to a value."""
    low, high = clip
    return min(max(value, low), high)


def trajectory_weight(
    labels: Iterable[str], utilities: Mapping[str, float] = UTILITIES, clip: Clip = CLIP
) -> float:
    """Return the mean utility of a trajectory's labels, clipped; 1 if no label counts.

    Args:
        labels: the label of each turn.
        utilities: the utility of each label that counts.
        clip: lowest and highest weight.

    Example:
        >>> trajectory_weight(["pass", "invalid_tool_call", "not_reached"])
        1.5

    Source: Eq. 10 and 11.
    """
    counted = [utilities[label] for label in labels if label in utilities]
    return clipped(sum(counted) / len(counted), clip) if counted else 1.0
