"""Places far from those that were seen, and how to share a round with them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from coevo_gym.curricula.pool.embed import normalise


def farthest_first(points: ArrayLike, covered: ArrayLike, k: int) -> list[int]:
    """Points that lie far from all that is covered, and from each other.

    The next one is that whose largest cosine to anything covered or chosen so far is smallest; of
    equals the first, and where nothing is covered the very first.

    Args:
        points: (n, dim) vectors of any length.
        covered: (m, dim) vectors of any length; m may be 0.
        k: how many; cut to n.

    Returns:
        Positions in the order in which they were chosen.

    Example:
        >>> farthest_first([[1, 0], [0, 1], [-1, 0]], [[1, 0]], 2)
        [2, 1]

    Source: Gonzalez' k-centre heuristic (1985), with cosine for distance.
    """
    rows = normalise(np.asarray(points, dtype=np.float64))
    seen = np.asarray(covered, dtype=np.float64)
    likeness = np.full(len(rows), -np.inf)
    if len(seen):
        likeness = (rows @ normalise(seen).T).max(axis=1)
    chosen: list[int] = []
    for _ in range(min(k, len(rows))):
        best = int(np.argmin(likeness))
        chosen.append(best)
        likeness = np.maximum(likeness, rows @ rows[best])
        likeness[chosen] = np.inf
    return chosen


class Quota(NamedTuple):
    """How many of each kind."""

    guided: int
    coverage: int


def quota(n: int, share: float, *, guided: int, coverage: int) -> Quota:
    """Share ``n`` places out; what one side cannot fill goes to the other.

    Args:
        n: places.
        share: of the guided ones, in [0, 1]; a part of a place is a place.
        guided: how many there are of them.
        coverage: how many there are of the others.

    Example:
        >>> quota(8, 0.5, guided=2, coverage=100)
        Quota(guided=2, coverage=6)
    """
    wanted = math.ceil(round(share * n, 9))
    others = min(coverage, n - min(wanted, guided))
    return Quota(min(guided, n - others), others)
