"""Draws of tasks by weight."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from coevo_gym.core.errors import ConfigError


def draw(weights: NDArray[np.float64], n: int, rng: Generator) -> NDArray[np.int64]:
    """Draw indices by weight, without repetition if there are enough.

    Indices are drawn one by one, in proportion to the remaining weights. With fewer positive
    weights than ``n``, all of their indices come first, and the rest is drawn with replacement.

    The implementation is an exponential race: each index with a positive weight w gets an
    exponential time with rate w, and the ``n`` smallest times win. The result has the same
    distribution as drawing one by one, and takes a single pass.

    Args:
        weights: (N,) finite, at least 0, not all 0, on any scale.
        n: number of indices, at least 1.
        rng: the only source of randomness.

    Returns:
        (n,) indices, in the order of the draws.

    Raises:
        ConfigError: if the weights are invalid.

    Example:
        >>> draw(np.array([0.0, 1.0, 3.0]), 2, np.random.default_rng(0)).tolist()
        [2, 1]
    """
    _check(weights)
    scaled = weights / weights.max()
    positive = np.flatnonzero(scaled)
    with np.errstate(over="ignore"):  # negligible weights come last
        times = rng.standard_exponential(len(positive)) / scaled[positive]
    n_once = min(n, len(positive))
    first = np.argpartition(times, n_once - 1)[:n_once] if n_once < len(times) else slice(None)
    order = np.argsort(times[first], kind="stable")
    once = positive[first][order]
    if n_once == n:
        return once
    shares = scaled[positive] / scaled[positive].sum()
    return np.concatenate([once, rng.choice(positive, size=n - n_once, p=shares)])


def _check(weights: NDArray[np.float64]) -> None:
    if weights.ndim != 1 or not np.isfinite(weights).all() or weights.min(initial=0.0) < 0:
        raise ConfigError(
            "A selector must return an array of weights with one finite number >= 0 per "
            f"task; actual: {weights!r}"
        )
    if not weights.any():
        raise ConfigError("The weights of a selector are all 0, so no task can be drawn.")
