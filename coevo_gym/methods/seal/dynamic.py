"""Utilities that grow with the frequency and the cost of a failure."""

from __future__ import annotations

from collections.abc import Mapping

from coevo_gym.methods.seal.utilities import CLIP, FAILURES, UTILITIES, Clip, clipped
from coevo_gym.methods.seal.window import Window


def moved_utilities(
    utilities: Mapping[str, float],
    window: Window,
    *,
    alpha: float = 1.0,
    beta: float = 0.25,
    confident: int = 32,
    clip: Clip = CLIP,
) -> dict[str, float]:
    """Return the utilities after a window.

    A failure's utility moves by ``beta`` towards
    clip(rho (1 + alpha s (1 - r) min(1, n / confident))) with its fixed utility rho, its share s of
    all turns of the window, its mean success r and its count n. So it returns to rho if the
    window does not contain the failure. Utilities of other labels stay.

    Args:
        utilities: the utilities before it.
        window: the labels of the window.
        alpha: maximum distance of a target from the fixed utility.
        beta: share of the way to the target.
        confident: count from which a label's numbers count in full.
        clip: lowest and highest target.

    Returns:
        The utility of each label that counts.

    Source: the code of SEAL; its paper says that utilities are fixed.
    """
    turns = sum(seen.turns for seen in window.values())
    found = dict(utilities)
    for label in FAILURES:
        target = UTILITIES[label]
        if (seen := window.get(label)) and turns:
            sure = min(1.0, seen.turns / confident)
            target *= 1.0 + alpha * seen.turns / turns * (1.0 - seen.mean) * sure
        found[label] = (1.0 - beta) * utilities[label] + beta * clipped(target, clip)
    return found
