"""Diversity of a growing task set, measured after each addition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coevo_gym.curricula.pool.embed import HashingEmbedder, Vectors, normalise

_ROWS = 1000
"""Number of rows per batch of cosines, which limits memory use."""


class Diversity(NamedTuple):
    """The diversity of a task set after tasks are added.

    Attributes:
        self_similarity: SR@5, the mean cosine between each task and its 5 nearest tasks, or NaN.
        distance: ED_rel between the first set and all added tasks, or NaN.
    """

    self_similarity: float
    distance: float


def diversity(sets: Sequence[Sequence[str]]) -> list[Diversity]:
    """Return the diversity of a growing task set after each addition, based on hashed words.

    Args:
        sets: instructions of the initial tasks (D_0), then the instructions that each round added.

    Example:
        >>> [round(one.self_similarity, 2) for one in diversity([["buy a", "buy b"], ["sell c"]])]
        [0.33, 0.11]
    """
    embed = HashingEmbedder()
    first, *later = sets
    tasks = GrowingSet(embed(first))
    rows = [Diversity(tasks.self_similarity, tasks.distance)]
    for texts in later:
        tasks.add(embed(texts))
        rows.append(Diversity(tasks.self_similarity, tasks.distance))
    return rows


class GrowingSet:
    """A growing task set whose diversity is updated after each addition.

    The metrics are defined in :mod:`coevo_gym.curricula.metrics`. Each pair of tasks is compared
    only once, so all additions together cost about as much as one computation for the final set.

    Args:
        first: (n, dim) vectors of the initial tasks (D_0); may be empty.
        k: number of neighbours in SR@k.

    Example:
        >>> tasks = GrowingSet(np.eye(3))
        >>> tasks.add([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> round(tasks.self_similarity, 3), round(tasks.distance, 3)
        (0.2, 0.167)
    """

    def __init__(self, first: ArrayLike, *, k: int = 5) -> None:
        self._k = k
        self._first = np.asarray(first, dtype=np.float64)
        self._all = self._first[:0]
        self._unit = self._first[:0]
        self._near: NDArray[np.float64] = np.zeros(
            (0, k)
        )  # cosines of the k nearest, -inf if missing
        self._within_first = self._within_added = self._between = 0.0
        self._append(self._first)
        self._within_first = _sum_distances(self._first, self._first)

    def add(self, rows: ArrayLike) -> None:
        """Add tasks, given their embedding vectors.

        Args:
            rows: (m, dim) vectors of the tasks; m may be 0.
        """
        new = np.asarray(rows, dtype=np.float64)
        if not len(new):
            return
        added = self._all[len(self._first) :]
        self._within_added += 2 * _sum_distances(new, added) + _sum_distances(new, new)
        self._between += _sum_distances(new, self._first)
        self._append(new)

    @property
    def self_similarity(self) -> float:
        """Self-similarity (SR@k) of all tasks, or NaN for fewer than two. Lower is more diverse."""
        n = len(self._all)
        if n < 2:
            return math.nan
        near = self._near[np.isfinite(self._near)]
        return float(near.sum() / (min(self._k, n - 1) * n))

    @property
    def distance(self) -> float:
        """Relative energy distance of the added tasks from the initial tasks; NaN if undefined."""
        n, m = len(self._first), len(self._all) - len(self._first)
        if min(n, m) < 2 or self._within_first == 0:
            return math.nan
        mean_first = self._within_first / (n * (n - 1))
        energy = (  # as a V-statistic
            2 * self._between / (n * m)
            - self._within_first / (n * n)
            - self._within_added / (m * m)
        )
        return float(energy / mean_first)

    def _append(self, new: Vectors) -> None:
        unit = normalise(new)
        near = np.full((len(new), self._k), -np.inf)
        for at in range(0, len(new), _ROWS):
            rows = unit[at : at + _ROWS]
            to_old = rows @ self._unit.T
            among = rows @ unit.T
            own = np.arange(at, at + len(rows))
            among[own - at, own] = -np.inf
            near[at : at + _ROWS] = _largest(np.hstack([to_old, among]), self._k)
            self._near = _largest(np.hstack([self._near, to_old.T]), self._k)
        self._near = np.vstack([self._near, near])
        self._all, self._unit = np.vstack([self._all, new]), np.vstack([self._unit, unit])


def _largest(values: Vectors, k: int) -> Vectors:
    """Return the k largest values in each row, padded with -inf."""
    if values.shape[1] < k:
        missing = np.full((len(values), k - values.shape[1]), -np.inf)
        return np.hstack([values, missing])
    return np.partition(values, values.shape[1] - k, axis=1)[:, values.shape[1] - k :]


def _sum_distances(a: Vectors, b: Vectors) -> float:
    """Return the sum of the distances between every row of ``a`` and every row of ``b``."""
    total, squares = 0.0, (b * b).sum(axis=1)
    for at in range(0, len(a), _ROWS):
        rows = a[at : at + _ROWS]
        squared = (rows * rows).sum(axis=1)[:, None] + squares - 2 * (rows @ b.T)
        total += float(np.sqrt(np.maximum(squared, 0.0)).sum())
    return total
