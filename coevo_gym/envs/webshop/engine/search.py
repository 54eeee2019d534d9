"""Full-text search over a catalogue: BM25 with Lucene's exact scores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from coevo_gym.envs.webshop.engine.analysis import analyze

K1 = 0.9
B = 0.4
MAX_TERMS = 1024
"""Maximum number of distinct query terms used; Lucene refuses longer queries."""


def quantised_length(length: int) -> int:
    """Round a document length down as Lucene's one-byte norms do.

    Lengths below 40 are exact; above, four significant bits of (length - 24) are kept.
    """
    if length < 40:
        return length
    rest = length - 24
    shift = rest.bit_length() - 4
    return ((rest >> shift) << shift) + 24


class SearchIndex:
    """An immutable BM25 index over documents with string ids.

    Scores are idf * tf / (tf + k1 * (1 - b + b * length / average length)) with k1 = 0.9 and b =
    0.4, in single precision like Lucene's. A term that occurs n times in a query counts n times.
    Documents with equal scores are ordered by id.

    Args:
        documents: pairs of id and text, with unique ids.
    """

    __slots__ = ("_denominators", "_docs", "_ids", "_starts", "_terms", "_weights")

    def __init__(self, documents: Iterable[tuple[str, str]]) -> None:
        ordered = sorted(documents)
        self._ids = tuple(id_ for id_, _ in ordered)
        counts = [Counter(analyze(text)) for _, text in ordered]
        self._terms: dict[str, int] = {}
        for count in counts:
            for term in count:
                self._terms.setdefault(term, len(self._terms))
        self._build(counts)

    def _build(self, counts: list[Counter[str]]) -> None:
        """Store the postings term by term, with the weight of each term."""
        pairs = [(self._terms[t], doc, n) for doc, c in enumerate(counts) for t, n in c.items()]
        postings = np.array(pairs, dtype=np.int32).reshape(-1, 3)
        postings = postings[np.argsort(postings[:, 0], kind="stable")]
        frequency = np.bincount(postings[:, 0], minlength=len(self._terms))
        self._starts = np.concatenate(([0], np.cumsum(frequency))).astype(np.int64)
        self._docs = np.ascontiguousarray(postings[:, 1])
        total = len(counts)
        idf = [math.log(1 + (total - n + 0.5) / (n + 0.5)) for n in frequency.tolist()]
        self._weights = np.array(idf, dtype=np.float32)
        lengths = [c.total() for c in counts]
        used = max(1, sum(1 for n in lengths if n))
        average = np.float32(max(1, sum(lengths)) / used)
        rounded = np.array([quantised_length(n) for n in lengths], dtype=np.float32)
        one, k1, b = np.float32(1), np.float32(K1), np.float32(B)
        inverse = one / (k1 * ((one - b) + b * rounded / average))
        self._denominators = one + postings[:, 2].astype(np.float32) * inverse[self._docs]

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._ids)

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """Return the score of every document, in the order of their ids."""
        scores = np.zeros(len(self._ids), dtype=np.float64)
        for term, count in list(Counter(analyze(query)).items())[:MAX_TERMS]:
            number = self._terms.get(term)
            if number is None:
                continue
            part = slice(self._starts[number], self._starts[number + 1])
            weight = self._weights[number] * np.float32(count)
            scores[self._docs[part]] += weight - weight / self._denominators[part]
        return scores.astype(np.float32)

    def search(self, query: str, k: int = 50) -> list[str]:
        """Return the ids of the best documents, best first.

        Args:
            query: free text; a query without any known word has no results.
            k: maximum number of ids.
        """
        scores = self.scores(query)
        found = np.flatnonzero(scores)
        if len(found) > k > 0:
            threshold = np.partition(scores[found], len(found) - k)[len(found) - k]
            found = found[scores[found] >= threshold]
        best = found[np.argsort(-scores[found], kind="stable")][:k]
        return [self._ids[at] for at in best]
