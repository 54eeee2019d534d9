"""How much the experiences that were told have helped."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean


def difference(guided: Sequence[float], free: Sequence[float]) -> float | None:
    """Return how much more often guided rollouts of a group succeed than free ones.

    Args:
        guided: success of the rollouts that were told an experience, 0 or 1 each.
        free: success of those that were told nothing.

    Returns:
        A number in [-1, 1]; None if one of the kinds is missing.

    Example:
        >>> difference([1, 0], [0, 0])
        0.5
    """
    return fmean(guided) - fmean(free) if guided and free else None
