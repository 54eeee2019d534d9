"""Search by cosine among many vectors."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coevo_gym.curricula.pool.embed import Nearest, normalise
from coevo_gym.provision import extra_advice

logger = logging.getLogger(__name__)

EXACT_UP_TO = 50_000
"""Vectors up to which every one is looked at."""

LINKS, PLACED, SEARCHED = 32, 100, 256
"""Of the graph: links of a vector, and candidates kept while one is placed, and while searching."""


class VectorIndex:
    """Vectors that are searched by cosine: exactly up to 50,000 of them, by a graph beyond.

    The graph is hnswlib's, of the extra ``embed``; without it the search stays exact and takes
    longer. Either way more than is wanted is found with 32 bits a number, and its cosines are
    computed anew with 64: what is returned has the cosine that is returned with it. The graph may
    miss a near vector. The same vectors, added in the same order, give the same answers.

    Args:
        dim: length of a vector.
        vectors: (n, dim) what it starts with, of any length.
        exact_up_to: number of vectors up to which every one is looked at.

    Example:
        >>> index = VectorIndex(2, [[1.0, 0.0], [0.0, 1.0]])
        >>> index.nearest([[0.1, 2.0]], k=1).rows.tolist()
        [[1]]
    """

    def __init__(
        self, dim: int, vectors: ArrayLike = (), *, exact_up_to: int = EXACT_UP_TO
    ) -> None:
        self.dim = dim
        self.exact_up_to = exact_up_to
        self._rows: NDArray[np.float32] = np.empty((0, dim), dtype=np.float32)
        self._n = 0
        self._graph: Any = None
        self._in_graph = 0
        self.add(vectors)

    def __len__(self) -> int:
        return self._n

    def add(self, vectors: ArrayLike) -> None:
        """Append (n, dim) vectors of any length."""
        new = np.asarray(vectors, dtype=np.float64).reshape(-1, self.dim)
        after = self._n + len(new)
        if after > len(self._rows):
            room = np.empty((max(after, 2 * len(self._rows)), self.dim), dtype=np.float32)
            room[: self._n] = self._rows[: self._n]
            self._rows = room
        self._rows[self._n : after] = normalise(new)
        self._n = after

    def nearest(self, queries: ArrayLike, k: int) -> Nearest:
        """The ``k`` nearest vectors of each of (q, dim) queries; ``k`` is cut to what there is."""
        asked = normalise(np.asarray(queries, dtype=np.float64))
        k = min(k, self._n)
        candidates = self._propose(asked.astype(np.float32), min(self._n, max(4 * k, 32)))
        cosine = np.einsum("qcd,qd->qc", self._rows[candidates].astype(np.float64), asked)
        order = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
        return Nearest(
            np.take_along_axis(candidates, order, axis=1), np.take_along_axis(cosine, order, axis=1)
        )

    @property
    def approximate(self) -> bool:
        """Whether the graph is asked; that hnswlib is missing is said in the log."""
        if self._n <= self.exact_up_to:
            return False
        if find_spec("hnswlib") is not None:
            return True
        logger.warning(
            "vectors=%d: searched one by one, which is slow. %s", self._n, extra_advice("embed")
        )
        return False

    def _propose(self, asked: NDArray[np.float32], n: int) -> NDArray[np.int64]:
        """(q, n) positions, rising, among which the nearest are."""
        if n == self._n:
            return np.tile(np.arange(n), (len(asked), 1))
        if self.approximate:
            self._grow()
            self._graph.set_ef(max(SEARCHED, n))
            found = self._graph.knn_query(asked, k=n)[0].astype(np.int64)
        else:
            distance = -(asked @ self._rows[: self._n].T)
            found = np.argpartition(distance, n - 1, axis=1)[:, :n]
        return np.sort(found, axis=1)

    def _grow(self) -> None:
        """Put what is new into the graph."""
        if self._graph is None:
            self._graph = import_module("hnswlib").Index(space="ip", dim=self.dim)
            self._graph.init_index(self._n, M=LINKS, ef_construction=PLACED, random_seed=0)
            self._graph.set_num_threads(1)  # in one order, so that the graph is always the same
        if self._n > self._graph.get_max_elements():
            self._graph.resize_index(2 * self._n)
        if self._n > self._in_graph:
            positions = np.arange(self._in_graph, self._n)
            self._graph.add_items(self._rows[self._in_graph : self._n], positions)
            self._in_graph = self._n
