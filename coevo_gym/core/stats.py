"""Statistics of what was counted, and of what was measured more than once.

```python
from coevo_gym.core.stats import paired, sign_flip

ours, baseline = [0.61, 0.58, 0.66], [0.55, 0.57, 0.60]  # success of three seeds
found = paired(ours, baseline)
print(f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}], {found.wins} of {found.n}")
print(sign_flip([a - b for a, b in zip(ours, baseline)]))
```
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

Z_95 = 1.959963984540054
"""The 97.5 % point of the standard normal distribution."""
EXACT = 16
"""Differences up to which all assignments of signs are looked at."""
SOLVED = 0.5
"""Share of a task's episodes that have to succeed for the task to count as solved."""
_CHUNK = 4096


def wilson_interval(successes: float, n: int, *, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval for a success rate.

    Args:
        successes: how many of ``n`` succeeded; a sum of shares where each was tried several times.
        n: how many were tried, at least 1.
        z: standard normal quantile of the confidence level (default: 95 %, two sides).

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
    rate = successes / n
    centre = rate + z * z / (2 * n)
    spread = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


@dataclass(frozen=True)
class Rate:
    """Success rate on some tasks.

    Attributes:
        tasks: tasks with at least one finished episode.
        success: mean over tasks of the share of episodes that succeeded (avg@k); NaN without tasks.
        low: lower end of its 95 % Wilson interval. Where tasks were tried several times they still
            count once each: the interval is then rather too wide than too narrow.
        high: upper end.
    """

    tasks: int
    success: float = math.nan
    low: float = math.nan
    high: float = math.nan


def success_rate(shares: Sequence[float]) -> Rate:
    """Compute the success rate over tasks, each of which was tried once or several times.

    Args:
        shares: for each task, the share of its episodes that succeeded.

    Example:
        >>> success_rate([0.5, 1.0]).success
        0.75
    """
    if not shares:
        return Rate(0)
    low, high = wilson_interval(sum(shares), len(shares))
    return Rate(len(shares), sum(shares) / len(shares), low, high)


class Paired(NamedTuple):
    """What two series of the same length differ by, pair by pair.

    Attributes:
        n: pairs.
        mean: mean of the differences.
        sd: their sample standard deviation; nan of one pair.
        low: lower end of the 95 % interval of the mean by Student's t; nan of one pair.
        high: upper end of it.
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
    """Mean and sample standard deviation; the latter is nan of one value.

    Raises:
        ValueError: if there are no values, or one is not finite.

    Example:
        >>> mean_and_sd([1.0, 2.0, 3.0])
        (2.0, 1.0)
    """
    _check("mean_and_sd", values)
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def paired(ours: Sequence[float], baseline: Sequence[float]) -> Paired:
    """What ``ours`` and ``baseline`` differ by, pair by pair: runs of equal seeds, for example.

    The interval is wide where pairs are few: with two it is 12.7 standard errors to each side.

    Raises:
        ValueError: if the series are not equally long, empty, or not finite.

    Example:
        >>> found = paired([0.5, 0.7, 0.6], [0.4, 0.5, 0.6])
        >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3), found.wins, found.ties
        (0.1, -0.148, 0.348, 2, 1)
    """
    if len(ours) != len(baseline):
        raise ValueError(f"paired needs as many of each, got {len(ours)} and {len(baseline)}")
    differences = [a - b for a, b in zip(ours, baseline, strict=True)]
    mean, sd = mean_and_sd(differences)
    n = len(differences)
    half = student_t_quantile(0.975, n - 1) * sd / math.sqrt(n) if n > 1 else math.nan
    wins, ties = sum(d > 0 for d in differences), sum(d == 0 for d in differences)
    return Paired(n, mean, sd, mean - half, mean + half, wins, ties)


def student_t_quantile(p: float, df: int) -> float:
    """The point below which Student's t lies with probability ``p``.

    Args:
        p: in (0, 1).
        df: degrees of freedom, at least 1.

    Raises:
        ValueError: if there is no such point.

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
        below, above = (angle, high) if _below(angle, df) < p else (low, angle)
        if (below, above) == (low, high):
            break
        low, high = below, above
    return math.sqrt(df) * math.tan((low + high) / 2)


def _below(angle: float, df: int) -> float:
    """Probability that t lies below ``sqrt(df) * tan(angle)``."""
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
    """How likely so uneven a split of signs is if both are equally likely: two sides, ties dropped.

    Returns:
        The p-value; 1 if all are ties.

    Raises:
        ValueError: if there are no differences, or one is not finite.

    Example:
        >>> round(sign_test([0.1] * 9 + [-0.1]), 6)
        0.021484
    """
    _check("sign_test", differences)
    wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    n = wins + losses
    tail: int = sum(math.comb(n, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / (1 << n))


def sign_flip(differences: Sequence[float], *, n_samples: int = 100_000, seed: int = 0) -> float:
    """How likely so large a mean is if each difference might as well have the other sign.

    All assignments of signs are looked at for up to 16 differences, and ``n_samples`` drawn ones,
    with the one at hand, beyond that.

    Args:
        differences: of pairs.
        n_samples: assignments to draw where there are too many for all.
        seed: of that draw.

    Returns:
        The p-value, two sides.

    Raises:
        ValueError: if there are no differences, or one is not finite.

    Source: Fisher's randomisation test of paired differences.

    Example:
        >>> sign_flip([0.3, 0.1, 0.2, 0.4])
        0.125
    """
    _check("sign_flip", differences)
    sizes = np.abs(np.asarray(differences, dtype=np.float64))
    n = len(sizes)
    # Equal sums may differ in their last bits, by the order in which they were added up.
    observed = abs(math.fsum(differences)) - 1e-9 * float(sizes.sum())
    if n <= EXACT:
        flips = np.arange(2**n)[:, None] >> np.arange(n) & 1
        return float(np.mean(np.abs((1 - 2 * flips) @ sizes) >= observed))
    rng = np.random.default_rng(seed)
    as_large = 0
    for start in range(0, n_samples, _CHUNK):
        flips = rng.integers(2, size=(min(_CHUNK, n_samples - start), n))
        as_large += int(np.sum(np.abs((1 - 2 * flips) @ sizes) >= observed))
    return (1 + as_large) / (1 + n_samples)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of several questions, so that a threshold holds for all of them together.

    Args:
        p_values: one of each question, in [0, 1].

    Returns:
        The adjusted p-values, in the same order.

    Raises:
        ValueError: if a p-value is outside [0, 1].

    Source: Holm (1979), the step-down Bonferroni method.

    Example:
        >>> holm([0.25, 0.125, 0.5])
        [0.5, 0.375, 0.5]
    """
    if wrong := [p for p in p_values if not 0 <= p <= 1]:
        raise ValueError(f"holm needs p-values in [0, 1], got {wrong[0]}")
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def paired_shares_interval(differences: Sequence[float], *, z: float = Z_95) -> tuple[float, float]:
    """Interval of the mean difference of two success rates on the same tasks (adjusted Wald).

    It counts two tasks more, one for each side, so that it keeps a width where no task differs.

    Args:
        differences: of each task's share of success, in [-1, 1].
        z: standard normal quantile of the confidence level (default: 95 %, two sides).

    Returns:
        Lower and upper end, within [-1, 1].

    Raises:
        ValueError: if there are no differences, or one is out of range.

    Source: Bonett and Price (2012), for outcomes of 0 or 1; the same with shares between them.

    Example:
        >>> [round(end, 3) for end in paired_shares_interval([1] * 12 + [-1] * 4 + [0] * 34)]
        [-0.001, 0.308]
    """
    _check("paired_shares_interval", differences)
    if wrong := [value for value in differences if abs(value) > 1]:
        raise ValueError(f"paired_shares_interval needs differences in [-1, 1], got {wrong[0]}")
    n = len(differences) + 2
    mean = math.fsum(differences) / n
    variance = (math.fsum(value * value for value in differences) + 2) / n - mean * mean
    half = z * math.sqrt(variance / n)
    return max(-1.0, mean - half), min(1.0, mean + half)


class AtK(NamedTuple):
    """Success of ``k`` tries a task, as means over tasks.

    Attributes:
        avg: share of the first ``k`` tries that succeed (avg@k).
        best: share of tasks of which one of the first ``k`` tries succeeds (best@k).
        passed: chance that one of ``k`` tries drawn from all of a task's succeeds (pass@k).
    """

    avg: float
    best: float
    passed: float


def at_k(outcomes: Sequence[Sequence[float]], k: int) -> AtK:
    """avg@k, best@k and pass@k.

    Args:
        outcomes: (tasks, tries) of 0 or 1, at least ``k`` tries of each task.
        k: tries that count.

    Raises:
        ValueError: if there are no tasks, too few tries, or an outcome is neither 0 nor 1.

    Source: pass@k is the unbiased estimate 1 - C(n - c, k) / C(n, k) (Chen et al., 2021).

    Example:
        >>> at_k([[0, 1, 0, 0], [1, 1, 1, 1]], k=2)
        AtK(avg=0.75, best=1.0, passed=0.75)
    """
    if k < 1 or not outcomes or any(len(tries) < k for tries in outcomes):
        fewest = min((len(tries) for tries in outcomes), default=0)
        raise ValueError(
            f"at_k needs k >= 1 and at least k tries of each task, got k={k} and {len(outcomes)} "
            f"tasks with {fewest} tries or more"
        )
    if wrong := [one for tries in outcomes for one in tries if one not in (0, 1)]:
        raise ValueError(f"at_k needs outcomes of 0 or 1, got {wrong[0]!r}")
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
    """How fast a learning curve rises.

    Attributes:
        steps: first step at which it is as high as asked for; None if it never is.
        auc: its mean height, as straight lines between its points.
    """

    steps: float | None
    auc: float


def efficiency(
    curve: Sequence[tuple[float, float]],
    baseline: Sequence[tuple[float, float]],
    *,
    share: float = 0.9,
) -> Efficiency:
    """When a curve reaches a share of a baseline's best, and how high it is on average.

    Args:
        curve: (step, value) in the order of steps, at least one.
        baseline: the same of what it is compared with.
        share: of the baseline's highest value.

    Raises:
        ValueError: if a curve is empty, or its steps do not rise.

    Source: AgentEvolver (arXiv 2511.10395), Table 6. Nothing is interpolated for ``steps``.

    Example:
        >>> efficiency([(0, 20.0), (20, 45.0), (40, 50.0)], [(0, 20.0), (100, 55.0)])
        Efficiency(steps=40, auc=40.0)
    """
    steps = [step for step, _ in curve]
    if not curve or not baseline or any(a >= b for a, b in pairwise(steps)):
        raise ValueError(f"efficiency needs two curves, the first with rising steps, got {steps}")
    wanted = share * max(value for _, value in baseline)
    reached = next((step for step, value in curve if value >= wanted), None)
    if len(curve) == 1:
        return Efficiency(reached, curve[0][1])
    area = math.fsum((b - a) * (x + y) / 2 for (a, x), (b, y) in pairwise(curve))
    return Efficiency(reached, area / (steps[-1] - steps[0]))


def point_biserial(values: Sequence[float], outcomes: Sequence[float]) -> float:
    """Correlation between numbers and outcomes of 0 or 1; nan if either does not vary.

    Raises:
        ValueError: if there are not as many of each, or a value is not finite.

    Example:
        >>> round(point_biserial([1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1]), 4)
        0.8944
    """
    if len(values) != len(outcomes):
        raise ValueError(f"point_biserial needs pairs, got {len(values)} and {len(outcomes)}")
    _check("point_biserial", [*values, *outcomes])
    x, y = (np.asarray(part, dtype=np.float64) for part in (values, outcomes))
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    x, y = x - x.mean(), y - y.mean()
    return float(x @ y / math.sqrt((x @ x) * (y @ y)))


def _check(name: str, values: Sequence[float]) -> None:
    if not len(values):
        raise ValueError(f"{name} needs at least one value")
    if wrong := [value for value in values if not math.isfinite(value)]:
        raise ValueError(f"{name} needs finite values, got {wrong[0]}")
