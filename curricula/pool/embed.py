"""Text embeddings as unit vectors, and exact cosine search."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from coevo_gym.core.errors import ConfigError
from coevo_gym.provision import SENTENCES, install_hint, models_home

Vectors = NDArray[np.float64]

_MINILM = "sentence-transformers/all-MiniLM-L6-v2"
_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Return the words in a string, ignoring case, spacing and punctuation.

    Example:
        >>> words("Buy the RED shoes, under $50!")
        ['buy', 'the', 'red', 'shoes', 'under', '50']
    """
    return _WORD.findall(text.casefold())


class Embedder(Protocol):
    """Interface for embedders, which turn texts into vectors for cosine similarity."""

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Return an (n, dim) array with one unit vector per text.

        The row of a text without words may be all zero.
        """
        ...


class HashingEmbedder:
    """An embedder that hashes words and word pairs into ``dim`` signed buckets.

    It does not need a model and returns the same vectors in every process. It captures shared words
    and their order, but not shared meaning.

    Args:
        dim: number of buckets.

    Example:
        >>> embed = HashingEmbedder()
        >>> a, b, c = embed(["buy red shoes", "Buy red shoes!", "find a mug"])
        >>> round(float(a @ b), 3), round(float(a @ c), 3)
        (1.0, 0.0)
    """

    def __init__(self, dim: int = 1024) -> None:
        self.dim = dim

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Embed texts; see :class:`Embedder`."""
        rows = np.zeros((len(texts), self.dim))
        for row, text in zip(rows, texts, strict=True):
            tokens = words(text)
            for token in (*tokens, *(" ".join(pair) for pair in pairwise(tokens))):
                bits = int.from_bytes(hashlib.blake2b(token.encode(), digest_size=8).digest())
                # The lowest bit is the sign, so that collisions cancel out on average.
                row[(bits >> 1) % self.dim] += 1.0 if bits & 1 else -1.0
        return normalise(rows)


class SentenceEmbedder:
    """An embedder that uses a sentence-transformers model, which is loaded on first use.

    The default model is loaded from ``$COEVO_HOME`` if `coevo model fetch minilm` has saved it
    there, and otherwise from the Hugging Face Hub.

    Args:
        model: name or path of the model.

    Raises:
        ConfigError: on first use, if sentence-transformers is not installed.
    """

    def __init__(self, model: str = _MINILM) -> None:
        self.model = model
        self._loaded: Any = None

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Embed texts; see :class:`Embedder`."""
        if self._loaded is None:
            self._loaded = _load_sentence_model(self.model)
        return normalise(np.asarray(self._loaded.encode(list(texts)), dtype=np.float64))


EMBEDDERS: Mapping[str, Callable[[], Embedder]] = {
    "words": HashingEmbedder,
    "sentences": SentenceEmbedder,
}
"""Embedders by their name in the setting ``curriculum.embedder``."""


def embedder_name(embed: Embedder) -> str:
    """Return an embedder's name in :data:`EMBEDDERS`, or "" if it has none."""
    return next((name for name, kind in EMBEDDERS.items() if type(embed) is kind), "")


def sentence_embedding_advice() -> str:
    """Return the command that makes sentence embeddings available, or "" if none is needed."""
    if find_spec("sentence_transformers") is None:
        return install_hint("embed")
    fetched = (models_home() / SENTENCES / "config.json").is_file()
    return "" if fetched else f"Run `coevo model fetch {SENTENCES}`"


def _load_sentence_model(model: str) -> Any:
    fetched = models_home() / SENTENCES
    if model == _MINILM and (fetched / "config.json").is_file():
        model = str(fetched)
    try:
        return import_module("sentence_transformers").SentenceTransformer(model)
    except ImportError as error:
        advice = install_hint("embed")
        raise ConfigError(
            f"Embedding with {model!r} needs sentence-transformers, which is not installed. "
            f"{advice}, or use HashingEmbedder."
        ) from error


def normalise(rows: Vectors) -> Vectors:
    """Scale each row of an (n, dim) array to length 1; all-zero rows are not changed."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1.0)


class Nearest(NamedTuple):
    """The k nearest rows for each query.

    Attributes:
        rows: (q, k) indices into the corpus, nearest first; ties are ordered by index.
        cosine: (q, k) cosines of these rows.
    """

    rows: NDArray[np.int64]
    cosine: Vectors


def nearest(queries: Vectors, corpus: Vectors, k: int) -> Nearest:
    """Find the nearest rows by exact cosine search.

    Args:
        queries: (q, dim) vectors of any norm.
        corpus: (n, dim) vectors of any norm.
        k: number of rows per query, at most n.
    """
    cosine = normalise(queries) @ normalise(corpus).T
    rows = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
    return Nearest(rows, np.take_along_axis(cosine, rows, axis=1))
