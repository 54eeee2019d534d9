"""Statistics for counts and repeated measurements.

```python
from coevo_gym.core.stats import paired_difference, sign_flip_test

ours, baseline = [0.61, 0.58, 0.66], [0.55, 0.57, 0.60]  # success of three seeds
difference = paired_difference(ours, baseline)
print(f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]")
print(sign_flip_test([a - b for a, b in zip(ours, baseline)]))
```
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

Z_95 = 1.959963984540054
"""The 97.5 % point of the standard normal distribution."""
EXACT = 16
"""Maximum number of differences for enumerating every assignment of signs."""
SOLVED = 0.5
"""Minimum share of a task's episodes that must succeed for the task to count as solved."""
_SAMPLES, _CHUNK = 100_000, 4096


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
    """Compute the two-sided 95% Wilson score interval for a success rate.

    Args:
        successes: number of successes among ``n``; may be fractional for repeated trials.
        n: number of trials, at least 1.

    Returns:
        Lower and upper end, within [0, 1].

    Raises:
        ValueError: if the counts are impossible.

    Example:
        >>> [round(end, 4) for end in wilson_interval(5, 10)]
        [0.2366, 0.7634]
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(
            f"wilson_interval needs 0 <= successes <= n and n >= 1, got {successes}/{n}"
        )
    rate, z = successes / n, Z_95
    centre = rate + z * z / (2 * n)
    spread = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


@dataclass(frozen=True)
class Rate:
    """The success rate on a set of tasks.

    Attributes:
        tasks: number of tasks with at least one finished episode.
        success: mean over tasks of the share of successful episodes (avg@k); NaN without tasks.
        low: lower end of the 95% Wilson interval. A task that was tried several times counts
            once, so the interval tends to be too wide rather than too narrow.
        high: upper end.
    """

    tasks: int
    success: float = math.nan
    low: float = math.nan
    high: float = math.nan


def success_rate(shares: Sequence[float]) -> Rate:
    """Compute the mean success rate over tasks, with a confidence interval.

    Example:
        >>> success_rate([0.5, 1.0]).success
        0.75
    """
    if not shares:
        return Rate(0)
    low, high = wilson_interval(sum(shares), len(shares))
    return Rate(len(shares), sum(shares) / len(shares), low, high)


class Paired(NamedTuple):
    """A summary of the paired differences between two series of equal length.

    Attributes:
        n: number of pairs.
        mean: mean of the differences.
        sd: sample standard deviation of the differences; NaN for one pair.
        low: lower end of the 95% interval for the mean (Student's t); NaN for one pair.
        high: upper end of the interval.
        wins: pairs in which the first series is larger.
        ties: pairs in which both are equal.
    """

    n: int
    mean: float
    sd: float
    low: float
    high: float
    wins: int
    ties: int


def mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Compute the mean and the sample standard deviation (NaN for a single value).

    Raises:
        ValueError: if there are no values, or a value is not finite.

    Example:
        >>> mean_and_sd([1.0, 2.0, 3.0])
        (2.0, 1.0)
    """
    _check_finite("mean_and_sd", values)
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Compute the 95% interval for the mean of repeated measurements (Student's t).

    With few values, the interval is wide: 12.7 standard errors on each side for two values.

    Returns:
        Lower and upper end; NaN for a single value.

    Raises:
        ValueError: if there are no values, or a value is not finite.

    Example:
        >>> [round(end, 3) for end in mean_interval([0.5, 0.7, 0.6])]
        [0.352, 0.848]
    """
    mean, sd = mean_and_sd(values)
    n = len(values)
    half = student_t_quantile(0.975, n - 1) * sd / math.sqrt(n) if n > 1 else math.nan
    return mean - half, mean + half


def paired_difference(ours: Sequence[float], baseline: Sequence[float]) -> Paired:
    """Compare two series of paired values, such as results of runs with the same seeds.

    Its interval is that of :func:`mean_interval`.

    Raises:
        ValueError: if the series differ in length, are empty, or contain a value that is not
            finite.

    Example:
        >>> difference = paired_difference([0.5, 0.7, 0.6], [0.4, 0.5, 0.6])
        >>> [round(value, 3) for value in (difference.mean, difference.low, difference.high)]
        [0.1, -0.148, 0.348]
        >>> difference.wins, difference.ties
        (2, 1)
    """
    if len(ours) != len(baseline):
        raise ValueError(
            f"paired_difference() needs series of equal length, got {len(ours)} and {len(baseline)}"
        )
    differences = [a - b for a, b in zip(ours, baseline, strict=True)]
    mean, sd = mean_and_sd(differences)
    wins, ties = sum(d > 0 for d in differences), sum(d == 0 for d in differences)
    return Paired(len(differences), mean, sd, *mean_interval(differences), wins, ties)


def student_t_quantile(p: float, df: int) -> float:
    """Compute Student's t quantile for ``p`` in (0, 1) and ``df`` >= 1 degrees of freedom.

    Raises:
        ValueError: if ``p`` or ``df`` is out of range.

    Source: Abramowitz and Stegun, 26.7.3 and 26.7.4 (whole degrees of freedom), inverted by
    bisection over the angle.

    Example:
        >>> round(student_t_quantile(0.975, 9), 6)
        2.262157
    """
    if not (0 < p < 1 and df >= 1):
        raise ValueError(f"student_t_quantile needs 0 < p < 1 and df >= 1, got p={p}, df={df}")
    low, high = -math.pi / 2, math.pi / 2
    for _ in range(200):
        angle = (low + high) / 2
        below, above = (angle, high) if _probability_below(angle, df) < p else (low, angle)
        if (below, above) == (low, high):
            break
        low, high = below, above
    return math.sqrt(df) * math.tan((low + high) / 2)


def _probability_below(angle: float, df: int) -> float:
    """Compute the probability that Student's t is below ``sqrt(df) * tan(angle)``."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = df % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(odd, df - 1, 2):
        total += term
        term *= cosine * cosine * (k + 1) / (k + 2)
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 + within) / 2


def sign_test(differences: Sequence[float]) -> float:
    """Compute the p-value of a two-sided sign test, ignoring ties.

    Returns:
        The p-value; 1 if all differences are ties.

    Raises:
        ValueError: if there are no differences, or a difference is not finite.

    Example:
        >>> round(sign_test([0.1] * 9 + [-0.1]), 6)
        0.021484
    """
    _check_finite("sign_test", differences)
    wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    n = wins + losses
    tail: int = sum(math.comb(n, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / (1 << n))


def sign_flip_test(differences: Sequence[float]) -> float:
    """Run a two-sided sign-flip test for a mean difference of 0, and return the p-value.

    For up to 16 differences, all assignments of signs are enumerated. For more, 100,000
    assignments are drawn, and the observed assignment is added.

    Raises:
        ValueError: if there are no differences, or a difference is not finite.

    Source: Fisher's randomisation test of paired differences.

    Example:
        >>> sign_flip_test([0.3, 0.1, 0.2, 0.4])
        0.125
    """
    _check_finite("sign_flip_test", differences)
    sizes = np.abs(np.asarray(differences, dtype=np.float64))
    n = len(sizes)
    # Equal sums may differ in their last bits, depending on the order of addition.
    observed = abs(math.fsum(differences)) - 1e-9 * float(sizes.sum())
    if n <= EXACT:
        flips = np.arange(2**n)[:, None] >> np.arange(n) & 1
        return float(np.mean(np.abs((1 - 2 * flips) @ sizes) >= observed))
    rng = np.random.default_rng(0)
    as_large = 0
    for start in range(0, _SAMPLES, _CHUNK):
        flips = rng.integers(2, size=(min(_CHUNK, _SAMPLES - start), n))
        as_large += int(np.sum(np.abs((1 - 2 * flips) @ sizes) >= observed))
    return (1 + as_large) / (1 + _SAMPLES)


def adjust_p_values(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple tests (Holm), to control the family-wise error rate.

    Raises:
        ValueError: if a p-value is outside [0, 1].

    Source: Holm (1979), the step-down Bonferroni method.

    Example:
        >>> adjust_p_values([0.25, 0.125, 0.5])
        [0.5, 0.375, 0.5]
    """
    if wrong := [p for p in p_values if not 0 <= p <= 1]:
        raise ValueError(f"adjust_p_values needs p-values in [0, 1], got {wrong[0]}")
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def paired_shares_interval(differences: Sequence[float]) -> tuple[float, float]:
    """Compute the adjusted Wald interval for the difference between two paired success rates.

    The level is 95%, two-sided. The adjustment adds two tasks, one in favour of each side, so that
    the width stays positive even if no task differs.

    Args:
        differences: each task's difference between the two shares of successes, in [-1, 1].

    Returns:
        Lower and upper end, within [-1, 1].

    Raises:
        ValueError: if there are no differences, or a difference is out of range.

    Source: Bonett and Price (2012), for outcomes of 0 or 1; here extended to shares between 0 and
        1.

    Example:
        >>> [round(end, 3) for end in paired_shares_interval([1] * 12 + [-1] * 4 + [0] * 34)]
        [-0.001, 0.308]
    """
    _check_finite("paired_shares_interval", differences)
    if wrong := [value for value in differences if abs(value) > 1]:
        raise ValueError(f"paired_shares_interval needs differences in [-1, 1], got {wrong[0]}")
    n = len(differences) + 2
    mean = math.fsum(differences) / n
    variance = (math.fsum(value * value for value in differences) + 2) / n - mean * mean
    half = Z_95 * math.sqrt(variance / n)
    return max(-1.0, mean - half), min(1.0, mean + half)


class AtK(NamedTuple):
    """Success measures for ``k`` tries per task, averaged over tasks.

    Attributes:
        avg: share of the first ``k`` tries that succeed (avg@k).
        best: share of tasks for which at least one of the first ``k`` tries succeeds (best@k).
        passed: probability that at least one of ``k`` tries, drawn from all tries of the task,
            succeeds (pass@k).
    """

    avg: float
    best: float
    passed: float


def success_at_k(outcomes: Sequence[Sequence[float]], k: int) -> AtK:
    """Compute avg@k, best@k and pass@k.

    Args:
        outcomes: (tasks, tries) outcomes of 0 or 1, with at least ``k`` tries per task.
        k: number of tries to count.

    Raises:
        ValueError: if there are no tasks, too few tries, or an outcome is neither 0 nor 1.

    Source: pass@k is the unbiased estimate 1 - C(n - c, k) / C(n, k) (Chen et al., 2021).

    Example:
        >>> success_at_k([[0, 1, 0, 0], [1, 1, 1, 1]], k=2)
        AtK(avg=0.75, best=1.0, passed=0.75)
    """
    if k < 1 or not outcomes or any(len(tries) < k for tries in outcomes):
        fewest = min((len(tries) for tries in outcomes), default=0)
        raise ValueError(
            f"success_at_k needs k >= 1 and at least k tries per task, got k={k}, {len(outcomes)} "
            f"tasks and a minimum of {fewest} tries"
        )
    if wrong := [one for tries in outcomes for one in tries if one not in (0, 1)]:
        raise ValueError(f"success_at_k needs outcomes of 0 or 1, got {wrong[0]!r}")
    n_tasks = len(outcomes)
    failing = [
        math.comb(len(tries) - int(sum(tries)), k) / math.comb(len(tries), k) for tries in outcomes
    ]
    return AtK(
        avg=sum(sum(tries[:k]) for tries in outcomes) / (n_tasks * k),
        best=sum(any(tries[:k]) for tries in outcomes) / n_tasks,
        passed=math.fsum(1 - failed for failed in failing) / n_tasks,
    )


class Efficiency(NamedTuple):
    """A measure of how fast a learning curve rises.

    Attributes:
        steps: first step at which the curve reaches the target; None if it never does.
        auc: mean height of the curve, with linear interpolation between points.
    """

    steps: float | None
    auc: float


def learning_efficiency(
    curve: Sequence[tuple[float, float]],
    baseline: Sequence[tuple[float, float]],
    *,
    share: float = 0.9,
) -> Efficiency:
    """Compute the mean of a curve and the first step at which the curve reaches a target.

    Args:
        curve: at least one (step, value) pair, with rising steps.
        baseline: (step, value) pairs of the baseline.
        share: share of the baseline's highest value to use as the target.

    Raises:
        ValueError: if a curve is empty, or its steps do not rise.

    Source: AgentEvolver (arXiv 2511.10395), Table 6. ``steps`` is not interpolated.

    Example:
        >>> learning_efficiency([(0, 20.0), (20, 45.0), (40, 50.0)], [(0, 20.0), (100, 55.0)])
        Efficiency(steps=40, auc=40.0)
    """
    steps = [step for step, _ in curve]
    if not curve or not baseline or any(a >= b for a, b in pairwise(steps)):
        raise ValueError(f"curves must not be empty, and their steps must increase, got {steps}")
    wanted = share * max(value for _, value in baseline)
    reached = next((step for step, value in curve if value >= wanted), None)
    if len(curve) == 1:
        return Efficiency(reached, curve[0][1])
    area = math.fsum((b - a) * (x + y) / 2 for (a, x), (b, y) in pairwise(curve))
    return Efficiency(reached, area / (steps[-1] - steps[0]))


def point_biserial(values: Sequence[float], outcomes: Sequence[float]) -> float:
    """Compute the correlation of values with binary outcomes. It is NaN if either is constant.

    Raises:
        ValueError: if the series differ in length, or a value is not finite.

    Example:
        >>> round(point_biserial([1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1]), 4)
        0.8944
    """
    if len(values) != len(outcomes):
        raise ValueError(
            "point_biserial needs two series of equal length, "
            f"got {len(values)} and {len(outcomes)}"
        )
    _check_finite("point_biserial", [*values, *outcomes])
    x, y = (np.asarray(part, dtype=np.float64) for part in (values, outcomes))
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    x, y = x - x.mean(), y - y.mean()
    return float(x @ y / math.sqrt((x @ x) * (y @ y)))


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """Compute Cohen's kappa, the chance-corrected agreement between two raters.

    Args:
        first: (n,) labels of the items by one rater, with n at least 1.
        second: (n,) labels of the items by the other rater.

    Returns:
        (p_o - p_e) / (1 - p_e), at most 1, where p_o is the observed share of equal labels, and p_e
        the share expected of independent raters. NaN if both give all items the same label.

    Raises:
        ValueError: if the series are empty or differ in length.

    Source: Cohen, A coefficient of agreement for nominal scales (1960).

    Example:
        >>> cohen_kappa([1, 1, 0, 0], [1, 0, 0, 0])
        0.5
    """
    n = len(first)
    if not n or n != len(second):
        raise ValueError(f"cohen_kappa needs two series of equal length, got {n} and {len(second)}")
    counts, others = Counter(first), Counter(second)
    by_chance = sum(count * others[label] for label, count in counts.items())
    if by_chance == n * n:
        return math.nan
    equal = sum(a == b for a, b in zip(first, second, strict=True))
    return (equal * n - by_chance) / (n * n - by_chance)


def _check_finite(name: str, values: Sequence[float]) -> None:
    if not len(values):
        raise ValueError(f"{name} needs at least one value")
    if wrong := [value for value in values if not math.isfinite(value)]:
        raise ValueError(f"{name} needs finite values, got {wrong[0]}")
