"""Statistics of what was counted."""

from __future__ import annotations

import math

Z_95 = 1.959963984540054
"""The 97.5 % point of the standard normal distribution."""


def wilson_interval(successes: int, n: int, *, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval for a success rate.

    Args:
        successes: how many of ``n`` succeeded.
        n: how many were tried, at least 1.
        z: standard normal quantile of the confidence level (default: 95 %, two sides).

    Returns:
        Lower and upper end, within [0, 1].

    Raises:
        ValueError: if the counts are impossible.

    Example:
        >>> [round(end, 4) for end in wilson_interval(5, 10)]
        [0.2366, 0.7634]
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(
            f"wilson_interval needs 0 <= successes <= n and n >= 1, got {successes}/{n}"
        )
    rate = successes / n
    centre = rate + z * z / (2 * n)
    spread = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
