"""CoEvolve's formulas for whole task sets, with which the numbers of growing sets are compared."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from coevo_gym.curricula.pool.embed import Vectors, normalise

Estimator = Literal["v", "u"]


def self_similarity(embeddings: ArrayLike, k: int = 5) -> float:
    """SR@k: the mean cosine between each task and its ``k`` nearest tasks (Eq. 2)."""
    y = normalise(np.asarray(embeddings, dtype=np.float64))
    k = min(k, len(y) - 1)
    cosine = y @ y.T
    np.fill_diagonal(cosine, -np.inf)
    return float(np.sort(cosine, axis=1)[:, -k:].mean())


class EnergyDistance(NamedTuple):
    absolute: float
    relative: float


def energy_distance(x: ArrayLike, y: ArrayLike, estimator: Estimator = "v") -> EnergyDistance:
    """Return the absolute and relative energy distance between task sets (Eq. 3 and 4).

    ED = 2 E|x - y| - E|x - x'| - E|y - y'|;  ED_rel = ED / E_{i != i'}|x_i - x_i'|.

    The estimator ``"v"`` computes the means within a set over all pairs, as printed in the paper;
    ``"u"`` computes them over pairs i != i' and may be negative, like some values in the paper.
    """
    a, b = (np.asarray(points, dtype=np.float64) for points in (x, y))
    within_a, within_b = (_distances(p, p).sum() / (len(p) * (len(p) - 1)) for p in (a, b))
    shrink_a, shrink_b = ((len(p) - 1) / len(p) if estimator == "v" else 1.0 for p in (a, b))
    between = 2 * _distances(a, b).mean()
    absolute = float(between - shrink_a * within_a - shrink_b * within_b)
    return EnergyDistance(absolute, absolute / float(within_a))


def _distances(a: Vectors, b: Vectors) -> Vectors:
    return np.stack([np.linalg.norm(b - row, axis=1) for row in a])
