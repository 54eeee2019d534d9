"""Metrics for a task set and its growth, based on CoEvolve's formulas (arXiv 2604.15840)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coevo_gym.curricula.pool.embed import Vectors, nearest


class SimilarityHistogram(NamedTuple):
    """The similarity of each task in a set to a reference set.

    Attributes:
        similarity: (n,) largest cosine to any reference task.
        counts: (10,) number of tasks in each tenth of [0, 1]. The last bin includes 1, and the
            first bin includes negative values.
    """

    similarity: Vectors
    counts: NDArray[np.int64]


def similarity_histogram(embeddings: ArrayLike, reference: ArrayLike) -> SimilarityHistogram:
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


def conversion_ratios(
    *, signals: int, contexts: int, candidates: int, accepted: int
) -> dict[str, float]:
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


def round_time_share(rounds: int, seconds_per_round: float, seconds_in_all: float) -> float:
    """Return the fraction of a run's wall time that was spent in evolution rounds."""
    return _ratio(rounds * seconds_per_round, seconds_in_all)


class CrossTable(NamedTuple):
    """Shares of tasks by outcome, the baseline's first, then the agent's (C correct, W wrong)."""

    cc: float
    cw: float
    wc: float
    ww: float

    @property
    def baseline_rate(self) -> float:
        """Share of tasks solved by the baseline."""
        return self.cc + self.cw

    @property
    def agent_rate(self) -> float:
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
