"""Metrics for a task set and its growth, based on CoEvolve's formulas (arXiv 2604.15840)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coevo_gym.curricula.pool.embed import Vectors, nearest, normalise
from coevo_gym.curricula.pool.index import EXACT_UP_TO, VectorIndex

Estimator = Literal["v", "u"]
_ROWS = 1000
"""Number of rows per batch of cosines, which limits memory use."""


def self_similarity(embeddings: ArrayLike, k: int = 5) -> float:
    """Return SR@k, the similarity between the tasks in a set (lower means more diverse).

    SR@k = mean over i of the mean of cos(y_i, y_j) over the k nearest j != i (Eq. 2).

    With more than 50,000 tasks, :class:`VectorIndex` finds the neighbours.

    Args:
        embeddings: (n, dim) vectors of any norm, n >= 2.
        k: number of neighbours, at most n - 1.

    Raises:
        ValueError: if there are fewer than two tasks or ``k`` is below 1.
    """
    y = normalise(np.asarray(embeddings, dtype=np.float64))
    if len(y) < 2 or k < 1:
        raise ValueError(f"SR@k needs k >= 1 and at least 2 tasks, got k={k} and n={len(y)}.")
    k = min(k, len(y) - 1)
    index = VectorIndex(y.shape[1], y) if len(y) > EXACT_UP_TO else None
    total = 0.0
    for at in range(0, len(y), _ROWS):
        rows = y[at : at + _ROWS]
        own = np.arange(at, at + len(rows))
        if index is None:
            cosine = rows @ y.T
            cosine[own - at, own] = -np.inf
        else:
            near = index.nearest(rows, k + 1)
            cosine = np.where(near.rows == own[:, None], -np.inf, near.cosine)
        total += np.sort(cosine, axis=1)[:, -k:].sum()
    return float(total / (k * len(y)))


class EnergyDistance(NamedTuple):
    """The energy distance between two sets of tasks.

    Attributes:
        absolute: ED.
        relative: ED divided by the mean distance within the first set.
    """

    absolute: float
    relative: float


def energy_distance(x: ArrayLike, y: ArrayLike, estimator: Estimator = "v") -> EnergyDistance:
    """Return the absolute and relative energy distance between task sets (CoEvolve, eq. 3 and 4).

    ED = 2 E|x - y| - E|x - x'| - E|y - y'|;  ED_rel = ED / E_{i != i'}|x_i - x_i'|.

    Args:
        x: (n, dim) vectors of the reference set, n >= 2.
        y: (m, dim) vectors, m >= 2.
        estimator: ``"v"`` computes the within-set means over all pairs, as printed in the paper,
            and is never negative. ``"u"`` computes the means over pairs i != i', is unbiased and
            may be negative, like some values in the paper.

    Raises:
        ValueError: if a set has fewer than two tasks, or all rows of ``x`` are the same point.
    """
    a, b = (np.asarray(points, dtype=np.float64) for points in (x, y))
    if min(len(a), len(b)) < 2:
        raise ValueError(f"Each set needs at least 2 tasks, got {len(a)} and {len(b)}.")
    within_a, within_b = (_distances(p, p).sum() / (len(p) * (len(p) - 1)) for p in (a, b))
    if within_a == 0:
        raise ValueError("Relative distance is undefined: all points in the first set are equal.")
    shrink_a, shrink_b = ((len(p) - 1) / len(p) if estimator == "v" else 1.0 for p in (a, b))
    between = 2 * _distances(a, b).mean()
    absolute = float(between - shrink_a * within_a - shrink_b * within_b)
    return EnergyDistance(absolute, absolute / float(within_a))


def _distances(a: Vectors, b: Vectors) -> Vectors:
    return np.stack([np.linalg.norm(b - row, axis=1) for row in a])


class SimilarityHistogram(NamedTuple):
    """The similarity of each task in a set to a reference set.

    Attributes:
        similarity: (n,) largest cosine to any reference task.
        counts: (10,) number of tasks in each tenth of [0, 1]. The last bin includes 1, and the
            first bin includes negative values.
    """

    similarity: Vectors
    counts: NDArray[np.int64]


def max_similarity(embeddings: ArrayLike, reference: ArrayLike) -> SimilarityHistogram:
    """Return each task's similarity to the nearest reference, and a histogram (CoEvolve, Figure 5).

    Args:
        embeddings: (n, dim) vectors of any norm.
        reference: (m, dim) vectors, m >= 1.
    """
    y, v = (np.asarray(points, dtype=np.float64) for points in (embeddings, reference))
    similarity = nearest(y, v, 1).cosine[:, 0]
    # Rounding puts 0.8 into the right bin if it was computed as 0.7999….
    bins = np.clip(np.floor(np.round(similarity, 9) * 10), 0, 9).astype(np.int64)
    return SimilarityHistogram(similarity, np.bincount(bins, minlength=10))


def shares_of(counts: Mapping[str, int]) -> dict[str, float]:
    """Return each count as a fraction of the total, or all zeros if the total is 0."""
    total = sum(counts.values())
    return {name: _ratio(count, total) for name, count in counts.items()}


def conversion(*, signals: int, contexts: int, candidates: int, accepted: int) -> dict[str, float]:
    """Return ratios that measure how efficiently exploration turned signals into tasks.

    ``yield`` is the number of drafts (candidates) per context, ``pass_rate`` the share of drafts
    that became tasks, and ``conversion`` the number of tasks per signal. Undefined ratios are 0.
    """
    return {
        "yield": _ratio(candidates, contexts),
        "pass_rate": _ratio(accepted, candidates),
        "conversion": _ratio(accepted, signals),
    }


def step_shares(**steps: int) -> dict[str, float]:
    """Return each env step count as a fraction of the total, or all zeros if the total is 0.

    Example:
        >>> step_shares(practice=60, explore=10, gate=30)["share_gate_steps"]
        0.3
    """
    return {f"share_{name}_steps": share for name, share in shares_of(steps).items()}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def feedback_ratio(rounds: int, seconds_per_round: float, seconds_in_all: float) -> float:
    """Return the fraction of a run's wall time that was spent in evolution rounds."""
    return _ratio(rounds * seconds_per_round, seconds_in_all)


class CrossTable(NamedTuple):
    """Share of tasks by outcomes: the baseline's, then the agent's (C = correct, W = wrong)."""

    cc: float
    cw: float
    wc: float
    ww: float

    @property
    def baseline(self) -> float:
        """Share of tasks solved by the baseline."""
        return self.cc + self.cw

    @property
    def ours(self) -> float:
        """Share of tasks solved by the agent under test."""
        return self.cc + self.wc


def cross_table(baseline: Sequence[bool], ours: Sequence[bool]) -> CrossTable:
    """Compare two agents on the same tasks (CoEvolve, Table 8).

    Args:
        baseline: outcome per task.
        ours: outcome per task, in the same order.

    Raises:
        ValueError: if the lengths differ or are 0.
    """
    if not baseline:
        raise ValueError("A cross-tabulation needs at least one task.")
    counts: Mapping[tuple[bool, bool], int] = Counter(
        (bool(a), bool(b)) for a, b in zip(baseline, ours, strict=True)
    )
    order = ((True, True), (True, False), (False, True), (False, False))
    return CrossTable(*(counts.get(pair, 0) / len(baseline) for pair in order))
