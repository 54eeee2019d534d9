"""Draws of tasks by weight."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from coevo_gym.core.errors import ConfigError


def draw(weights: NDArray[np.float64], n: int, rng: Generator) -> NDArray[np.int64]:
    """Draw positions by weight, each at most once as long as there are enough.

    One after the other, each in proportion to its weight among those that are left. With fewer
    positive weights than ``n``, all of those come first, and the rest is drawn with replacement.

    It is a race: each position with a positive weight w takes an exponential time with rate w, and
    the first ``n`` win, which has the distribution of drawing one by one and takes one pass.

    Args:
        weights: (N,) finite, at least 0, not all 0, on any scale.
        n: how many, at least 1.
        rng: the only source of chance.

    Returns:
        (n,) positions, in the order in which they were drawn.

    Raises:
        ConfigError: if the weights are not of that form.

    Example:
        >>> draw(np.array([0.0, 1.0, 3.0]), 2, np.random.default_rng(0)).tolist()
        [2, 1]
    """
    _check(weights)
    scaled = weights / weights.max()
    positive = np.flatnonzero(scaled)
    with np.errstate(over="ignore"):  # a weight too small to count beside the largest comes last
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
            "The weights of a selector must be an array of one finite number >= 0 for each task; "
            f"actual: {weights!r}"
        )
    if not weights.any():
        raise ConfigError("The weights of a selector are all 0, so that no task can be drawn.")
