"""Numbers about a task set and its growth; the formulas are those of CoEvolve (2604.15840)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coevo_gym.curricula.pool.embed import Vectors, nearest, normalise
from coevo_gym.curricula.pool.index import EXACT_UP_TO, VectorIndex

Estimator = Literal["v", "u"]
_ROWS = 1000
"""Rows whose cosines to all others are held at once."""


def self_similarity(embeddings: ArrayLike, k: int = 5) -> float:
    """SR@k: how alike the tasks of a set are (lower is more diverse).

    SR@k = mean over i of the mean of cos(y_i, y_j) over the k nearest j != i (Eq. 2).

    Of more than 50,000 tasks the neighbours are those that :class:`VectorIndex` finds.

    Args:
        embeddings: (n, dim) vectors of any length, n >= 2.
        k: neighbours; cut to n - 1.

    Raises:
        ValueError: if there are fewer than two tasks or ``k`` is below 1.
    """
    y = normalise(np.asarray(embeddings, dtype=np.float64))
    if len(y) < 2 or k < 1:
        raise ValueError(f"SR@k needs k >= 1 and at least 2 tasks, actual: k={k}, n={len(y)}")
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
    """How far two sets of tasks lie apart.

    Attributes:
        absolute: ED.
        relative: ED divided by the mean distance within the first set.
    """

    absolute: float
    relative: float


def energy_distance(x: ArrayLike, y: ArrayLike, estimator: Estimator = "v") -> EnergyDistance:
    """ED between two sets, absolute and relative (Eq. 3 and 4).

    ED = 2 E|x - y| - E|x - x'| - E|y - y'|;  ED_rel = ED / E_{i != i'}|x_i - x_i'|.

    Args:
        x: (n, dim) vectors of the reference set, n >= 2.
        y: (m, dim) vectors, m >= 2.
        estimator: ``"v"`` takes the within-set means over all pairs, as printed, and is never
            negative; ``"u"`` over pairs i != i', is unbiased and may be negative (so are some of
            the values that the paper prints).

    Raises:
        ValueError: if a set has fewer than two tasks, or all of ``x`` are the same point.
    """
    a, b = (np.asarray(points, dtype=np.float64) for points in (x, y))
    if min(len(a), len(b)) < 2:
        raise ValueError(f"ED needs at least 2 tasks in each set, actual: {len(a)} and {len(b)}")
    within_a, within_b = (_distances(p, p).sum() / (len(p) * (len(p) - 1)) for p in (a, b))
    if within_a == 0:
        raise ValueError("ED_rel is undefined: all tasks of the first set are the same point")
    shrink_a, shrink_b = ((len(p) - 1) / len(p) if estimator == "v" else 1.0 for p in (a, b))
    between = 2 * _distances(a, b).mean()
    absolute = float(between - shrink_a * within_a - shrink_b * within_b)
    return EnergyDistance(absolute, absolute / float(within_a))


def _distances(a: Vectors, b: Vectors) -> Vectors:
    return np.stack([np.linalg.norm(b - row, axis=1) for row in a])


class SimilarityHistogram(NamedTuple):
    """How close each task of a set comes to a reference set.

    Attributes:
        similarity: (n,) largest cosine to any reference task.
        counts: (10,) tasks in each tenth of [0, 1], the last one closed; values below 0 count in
            the first.
    """

    similarity: Vectors
    counts: NDArray[np.int64]


def max_similarity(embeddings: ArrayLike, reference: ArrayLike) -> SimilarityHistogram:
    """Similarity of each task to its nearest reference task, and its histogram (Fig. 5).

    Args:
        embeddings: (n, dim) vectors of any length.
        reference: (m, dim) vectors, m >= 1.
    """
    y, v = (np.asarray(points, dtype=np.float64) for points in (embeddings, reference))
    similarity = nearest(y, v, 1).cosine[:, 0]
    # Rounded, so that 0.8 computed as 0.7999… falls where it belongs.
    bins = np.clip(np.floor(np.round(similarity, 9) * 10), 0, 9).astype(np.int64)
    return SimilarityHistogram(similarity, np.bincount(bins, minlength=10))


class SignalShares(NamedTuple):
    """What a set of signals is made of.

    Attributes:
        counts: signals of each kind.
        shares: each count divided by their sum; all 0 without signals.
    """

    counts: dict[str, int]
    shares: dict[str, float]


def signal_shares(
    kinds: Iterable[str], all_kinds: Sequence[str] = ("forgetting", "boundary", "rare")
) -> SignalShares:
    """Counts and shares of signal kinds; a trajectory with two signals counts in both."""
    seen = Counter(kinds)
    counts = {kind: seen[kind] for kind in all_kinds}
    return SignalShares(counts, shares_of(counts))


def shares_of(counts: Mapping[str, int]) -> dict[str, float]:
    """Each count as a share of them all; all 0 without any."""
    total = sum(counts.values())
    return {name: _ratio(count, total) for name, count in counts.items()}


class Conversion(NamedTuple):
    """How well exploration turns signals into tasks.

    Attributes:
        candidates_per_context: drafts found in each context ("yield").
        pass_rate: drafts that became tasks.
        conversion: tasks for each signal.
    """

    candidates_per_context: float
    pass_rate: float
    conversion: float


def conversion(*, signals: int, contexts: int, candidates: int, accepted: int) -> Conversion:
    """Yield = candidates / contexts, pass rate = accepted / candidates, accepted / signals.

    A ratio to nothing is 0.
    """
    return Conversion(
        _ratio(candidates, contexts), _ratio(accepted, candidates), _ratio(accepted, signals)
    )


def step_shares(**steps: int) -> dict[str, float]:
    """What env steps were spent on: each number as a share of all, all 0 without steps.

    Example:
        >>> step_shares(practice=60, explore=10, gate=30)["share_gate_steps"]
        0.3
    """
    total = sum(steps.values())
    return {f"share_{name}_steps": _ratio(count, total) for name, count in steps.items()}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def feedback_ratio(rounds: int, seconds_per_round: float, seconds_in_all: float) -> float:
    """Share of a run's wall time that was spent in rounds of evolution."""
    return _ratio(rounds * seconds_per_round, seconds_in_all)


class CrossTable(NamedTuple):
    """Shares of tasks by who solves them: baseline first, ours second (C correct, W wrong)."""

    cc: float
    cw: float
    wc: float
    ww: float

    @property
    def baseline(self) -> float:
        """Share that the baseline solves."""
        return self.cc + self.cw

    @property
    def ours(self) -> float:
        """Share that ours solves."""
        return self.cc + self.wc


def cross_table(baseline: Sequence[bool], ours: Sequence[bool]) -> CrossTable:
    """Two agents on the same tasks (Table 8).

    Args:
        baseline: outcome per task.
        ours: outcome per task, in the same order.

    Raises:
        ValueError: if the lengths differ or are 0.
    """
    if not baseline:
        raise ValueError("A cross table needs at least one task")
    counts: Mapping[tuple[bool, bool], int] = Counter(
        (bool(a), bool(b)) for a, b in zip(baseline, ours, strict=True)
    )
    order = ((True, True), (True, False), (False, True), (False, False))
    return CrossTable(*(counts.get(pair, 0) / len(baseline) for pair in order))
