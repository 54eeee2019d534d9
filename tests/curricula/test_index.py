from __future__ import annotations

import logging

import numpy as np
import pytest

from coevo_gym.curricula.pool.embed import nearest
from coevo_gym.curricula.pool.index import VectorIndex
from tests import needs

hnswlib = pytest.mark.skipif(bool(needs.hnswlib()), reason=needs.hnswlib())
RNG = np.random.default_rng


def test_the_index_finds_the_same_neighbours_as_an_exhaustive_search() -> None:
    vectors, queries = RNG(0).normal(size=(300, 8)), RNG(1).normal(size=(20, 8))
    index = VectorIndex(8, vectors[:100])
    index.add(vectors[100:])
    assert len(index) == 300
    neighbours, wanted = index.nearest(queries, 5), nearest(queries, vectors, 5)
    assert neighbours.rows.tolist() == wanted.rows.tolist()
    assert neighbours.cosine == pytest.approx(wanted.cosine, abs=1e-6)


def test_k_is_limited_to_the_number_of_vectors() -> None:
    assert VectorIndex(2).nearest([[1, 0]], 3).rows.shape == (1, 0)
    assert VectorIndex(2, [[1, 0], [0, 1]]).nearest([[1, 0.1]], 3).rows.tolist() == [[0, 1]]


def test_a_single_vector_is_accepted_and_invalid_vectors_are_refused() -> None:
    index = VectorIndex(2, [1.0, 0.0])
    index.add([0.0, 2.0])
    assert len(index) == 2
    assert index.nearest([0.1, 1.0], 1).rows.tolist() == [[1]]
    for use in (index.add, lambda vectors: index.nearest(vectors, 1)):
        with pytest.raises(ValueError, match="Vector 1 contains NaN or an infinite number"):
            use([[1.0, 0.0], [np.nan, 0.0], [np.inf, 0.0]])
        with pytest.raises(ValueError, match="vectors of length 2, got an array of shape"):
            use([1.0, 2.0, 3.0])
    assert len(index) == 2


@hnswlib
def test_the_graph_beyond_the_exact_limit_finds_nearly_all_neighbours() -> None:
    vectors, queries = RNG(0).normal(size=(2000, 16)), RNG(1).normal(size=(100, 16))
    index = VectorIndex(16, vectors[:1500], exact_up_to=1000)
    index.nearest(queries[:1], 1)
    index.add(vectors[1500:])  # after the graph was made
    assert index.uses_graph
    neighbours, wanted = index.nearest(queries, 5), nearest(queries, vectors, 5)
    hits = [len(set(a) & set(b)) for a, b in zip(neighbours.rows, wanted.rows, strict=True)]
    assert sum(hits) / 500 >= 0.99
    again = VectorIndex(16, vectors[:1500], exact_up_to=1000)
    again.nearest(queries[:1], 1)
    again.add(vectors[1500:])
    assert again.nearest(queries, 5).rows.tolist() == neighbours.rows.tolist()


@hnswlib
def test_the_graph_finds_neighbours_in_clusters_added_one_after_another() -> None:
    """As when an arm proposes many tasks about one product, one round after the other."""
    centres = RNG(0).normal(size=(1200, 16))
    vectors = np.repeat(centres, 20, axis=0) + RNG(1).normal(size=(24_000, 16)) * 0.02
    queries = vectors[::13] + RNG(2).normal(size=(len(vectors[::13]), 16)) * 0.002
    neighbours = VectorIndex(16, vectors, exact_up_to=12_000).nearest(queries, 1)
    wanted = VectorIndex(16, vectors).nearest(queries, 1)
    assert np.mean(neighbours.rows == wanted.rows) >= 0.998
    searched = VectorIndex(16, exact_up_to=12_000)
    for part in np.split(vectors, 4):  # when a search is made does not matter
        searched.add(part)
        searched.nearest(queries[:1], 1)
    assert searched.nearest(queries, 1).rows.tolist() == neighbours.rows.tolist()


@pytest.mark.parametrize("exact_up_to", [10_000, pytest.param(100, marks=hnswlib)])
def test_removed_vectors_are_not_found_and_others_keep_their_index(exact_up_to: int) -> None:
    vectors, queries = RNG(0).normal(size=(600, 8)), RNG(1).normal(size=(20, 8))
    index = VectorIndex(8, vectors[:400], exact_up_to=exact_up_to)
    index.nearest(queries[:1], 1)
    index.remove(7)
    index.add(vectors[400:])
    for row in (*range(20, 200, 3), 599):
        index.remove(row)
    gone = {7, *range(20, 200, 3), 599}
    rest = [row for row in range(600) if row not in gone]
    assert (len(index), index.n_removed) == (len(rest), len(gone))
    wanted = nearest(queries, vectors[rest], 5).rows
    neighbours = index.nearest(queries, 5).rows
    assert not gone & {*neighbours.ravel().tolist()}
    assert np.mean(neighbours == np.asarray(rest)[wanted]) >= 0.99
    compact = index.compact_copy()
    assert (len(compact), compact.n_removed) == (len(rest), 0)
    assert np.mean(compact.nearest(queries, 5).rows == wanted) >= 0.99
    assert {*index.nearest(queries[:1], 10_000).rows[0].tolist()} == {*rest}
    for row in (7, -1, 600):
        with pytest.raises(IndexError, match=f"no vector with index {row} to remove"):
            index.remove(row)


def test_without_hnswlib_the_search_is_exact_and_logs_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("coevo_gym.curricula.pool.index.find_spec", lambda name: None)
    vectors, queries = RNG(0).normal(size=(200, 8)), RNG(1).normal(size=(20, 8))
    index = VectorIndex(8, vectors, exact_up_to=100)
    with caplog.at_level(logging.WARNING):
        neighbours = index.nearest(queries, 3)
    assert neighbours.rows.tolist() == nearest(queries, vectors, 3).rows.tolist()
    assert "embed" in caplog.text
