"""The coach that tells experiences to some rollouts of each group."""

from __future__ import annotations

import math

_TOLERANCE = 1e-9


def places(size: int, share: float) -> tuple[int, ...]:
    """Return the places of a group whose rollouts are told experiences, spread evenly.

    Args:
        size: K, rollouts in a group.
        share: share of them, in [0, 1]; their number is rounded down.

    Example:
        >>> places(8, 0.5), places(7, 0.5)
        ((1, 3, 5, 7), (2, 4, 6))

    Source: AgentEvolver (arXiv 2511.10395), Eq. 15; the order is ours.
    """
    n = math.floor(size * share + _TOLERANCE)
    return tuple(place for place in range(size) if (place + 1) * n // size > place * n // size)
