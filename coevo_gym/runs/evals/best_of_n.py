"""The amount by which merely choosing the best of several evaluations raises a success rate.

A policy that does not change has a different result in each evaluation, because its episodes differ
by chance. The best of ``n`` results is therefore too high, by an amount that depends on the tasks:
a task that always or never succeeds adds nothing to it.

```python
from coevo_gym.runs.evals.best_of_n import best_of_n_rise

successes = [8, 8, 7, 6, 5, 2, 0, 8] * 16  # of 8 episodes for each of 128 tasks
rise = best_of_n_rise(successes, [8] * 128, n=31)
print(f"the best of 31 evaluations is {rise.points:.1f} points too high")
```
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MIN_SAMPLES = 4
"""Minimum number of episodes per task: with fewer, easy tasks cannot be distinguished from tasks
that have succeeded by chance."""
DRAWS = 1_000
"""Number of simulated choices; the error of the simulation is then about 0.03 points."""
_MIN_PARAMETER, _MAX_PARAMETER = 1e-6, 1e6
_MAX_ITERATIONS, _TOLERANCE = 10_000, 1e-9


class BetaSpread(NamedTuple):
    """A Beta distribution of the success rates of tasks.

    Attributes:
        alpha: first parameter, above 0.
        beta: second parameter, above 0.
    """

    alpha: float
    beta: float


class Rise(NamedTuple):
    """The amount by which choosing the best of several evaluations raises a policy's result.

    Attributes:
        points: expected best result minus the policy's true success rate, in percentage points.
        error: standard error of ``points`` that the simulation leaves, in points.
        spread: distribution of the tasks' success rates that was fitted.
    """

    points: float
    error: float
    spread: BetaSpread


def fit_beta(successes: Sequence[int], samples: Sequence[int]) -> BetaSpread:
    """Fit a Beta distribution to the success rates of a panel's tasks by maximum likelihood.

    Args:
        successes: (tasks,) number of successful episodes of each task.
        samples: (tasks,) number of its episodes, at least 2 for some task.

    Returns:
        The distribution whose beta-binomial likelihood is highest. Its parameters are limited to
        [1e-6, 1e6], because they have no maximum if, for example, all tasks have the same rate.

    Raises:
        ValueError: if the counts are impossible, or no task has 2 episodes.

    Source: the fixed-point iteration of Minka, Estimating a Dirichlet distribution (2000), for two
        outcomes. The digamma differences in it are finite sums, because the counts are integers.

    Example:
        >>> spread = fit_beta([0, 1, 3, 4] * 50, [4] * 200)
        >>> round(spread.alpha, 2) == round(spread.beta, 2)
        True
    """
    wins, tries = _to_checked_arrays(successes, samples)
    losses = tries - wins
    if tries.max() < 2:
        raise ValueError("fit_beta needs a task with at least 2 episodes, got 1 for each")
    places = np.arange(tries.max())
    # For each j, the number of tasks with more than j wins, losses and tries.
    more_wins, more_losses, more_tries = (
        (counts[:, None] > places).sum(axis=0) for counts in (wins, losses, tries)
    )
    alpha = beta = 1.0
    for _ in range(_MAX_ITERATIONS):
        per_try = float((more_tries / (alpha + beta + places)).sum())
        raised = alpha * float((more_wins / (alpha + places)).sum()) / per_try
        lowered = beta * float((more_losses / (beta + places)).sum()) / per_try
        after = (_clip(raised), _clip(lowered))
        change = abs(after[0] / alpha - 1) + abs(after[1] / beta - 1)
        alpha, beta = after
        if change < _TOLERANCE:
            break
    return BetaSpread(alpha, beta)


def best_of_n_rise(
    successes: Sequence[int],
    samples: Sequence[int],
    *,
    n: int,
    samples_per_evaluation: int = 1,
    seed: int = 0,
    draws: int = DRAWS,
) -> Rise:
    """Simulate by how much the best of ``n`` evaluations exceeds the true rate of a fixed policy.

    All evaluations play the same tasks. Each simulation draws the success rate of every task from
    its posterior distribution, given its counts and the Beta distribution fitted to all tasks. It
    then plays ``n`` evaluations with these rates, and subtracts their mean from their best result.

    The rates are drawn instead of set to their posterior means, because an evaluation's variance is
    the mean of p (1 - p), which is concave: raw shares of successes make it too small on average,
    posterior means make it too large, and draws give its expected value. The mean of the ``n``
    results stands for the true rate, which it equals on average, since it varies with the best
    result and so leaves less noise.

    Args:
        successes: (tasks,) number of successful episodes of each task.
        samples: (tasks,) number of its episodes, at least :data:`MIN_SAMPLES`.
        n: number of evaluations from which the best is chosen, at least 1.
        samples_per_evaluation: episodes per task in each of them, at least 1.
        seed: seed of the simulation.
        draws: number of simulated choices, at least 2.

    Raises:
        ValueError: if the counts are impossible, a task has too few episodes, or a number is too
            small.
    """
    wins, tries = _to_checked_arrays(successes, samples)
    if tries.min() < MIN_SAMPLES:
        raise ValueError(
            f"best_of_n_rise needs at least {MIN_SAMPLES} episodes per task, got {tries.min()}"
        )
    if n < 1 or samples_per_evaluation < 1 or draws < 2:
        raise ValueError(
            "best_of_n_rise needs n >= 1, samples_per_evaluation >= 1 and draws >= 2, got "
            f"{n}, {samples_per_evaluation} and {draws}"
        )
    spread = fit_beta(successes, samples)
    rng = np.random.default_rng(seed)
    rises = np.empty(draws)
    for i in range(draws):
        rates = rng.beta(spread.alpha + wins, spread.beta + tries - wins)  # (tasks,)
        solved = rng.binomial(samples_per_evaluation, rates, size=(n, len(rates)))
        results = solved.mean(axis=1) / samples_per_evaluation  # (n,)
        rises[i] = results.max() - results.mean()
    error = float(rises.std(ddof=1)) / math.sqrt(draws)
    return Rise(100 * float(rises.mean()), 100 * error, spread)


def _to_checked_arrays(
    successes: Sequence[int], samples: Sequence[int]
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Return the counts as arrays, after checking that they are possible."""
    wins, tries = np.asarray(successes, dtype=np.int64), np.asarray(samples, dtype=np.int64)
    if not len(wins) or len(wins) != len(tries):
        raise ValueError(
            f"counts of successes and samples must cover the same tasks, got {len(wins)} and "
            f"{len(tries)}"
        )
    if wrong := [
        (s, k) for s, k in zip(successes, samples, strict=True) if not 0 <= s <= k or not k
    ]:
        s, k = wrong[0]
        raise ValueError(f"a task cannot have {s} successes in {k} episodes")
    return wins, tries


def _clip(parameter: float) -> float:
    return min(max(parameter, _MIN_PARAMETER), _MAX_PARAMETER)
