"""Selection of points far from covered ones, and the split of a round between two kinds."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from coevo_gym.curricula.pool.embed import normalise


def farthest_first(points: ArrayLike, covered: ArrayLike, k: int) -> list[int]:
    """Return points that are far from all covered points and from each other.

    The next point is the one whose largest cosine to any covered or chosen point is smallest. Ties
    go to the first point; if nothing is covered, the first point is chosen first.

    Args:
        points: (n, dim) vectors of any length.
        covered: (m, dim) vectors of any length; m may be 0.
        k: number of points to choose; cut to n.

    Returns:
        Indices of the points, in the order of their choice.

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
    """Number of contexts of each kind."""

    guided: int
    coverage: int


def quota(n: int, share: float, *, guided: int, coverage: int) -> Quota:
    """Split ``n`` contexts between two kinds; one kind's shortfall goes to the other.

    Args:
        n: number of contexts.
        share: share of guided contexts, in [0, 1]; the number is rounded up.
        guided: number of available guided contexts.
        coverage: number of available coverage contexts.

    Example:
        >>> quota(8, 0.5, guided=2, coverage=100)
        Quota(guided=2, coverage=6)
    """
    wanted = math.ceil(round(share * n, 9))
    others = min(coverage, n - min(wanted, guided))
    return Quota(min(guided, n - others), others)
