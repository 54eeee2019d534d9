"""Numbers of self-questioning: what an explorer sees, which tasks are mixed, what a judge said."""

from __future__ import annotations

from typing import NamedTuple


def shown(step: int, breadth: int, depth: int) -> range:
    """Return the observations that an explorer sees at a step.

    Args:
        step: steps taken so far.
        breadth: N_b, steps in breadth, in which all observations are shown.
        depth: N_d, latest observations that are shown after that, the present one included.

    Example:
        >>> list(shown(2, 3, 2)), list(shown(5, 3, 2))
        ([0, 1, 2], [4, 5])

    Source: AgentEvolver (arXiv 2511.10395), 3.1.
    """
    return range(0 if step < breadth else max(0, step - depth + 1), step + 1)


class MixtureWeights(NamedTuple):
    """How native and evolved tasks are mixed.

    Attributes:
        n_native: native tasks that are drawn from.
        n_evolved: evolved tasks that are drawn from, the first ones.
        native_weight: weight of each native task, 0 if there is none.
        evolved_weight: weight of each of the first evolved tasks, 0 if there is none.
    """

    n_native: int
    n_evolved: int
    native_weight: float
    evolved_weight: float


def mixture(
    n_native: int, n_evolved: int, *, lam: float, ratio: float, use_native: bool = True
) -> MixtureWeights:
    """Return how often native and evolved tasks are drawn.

    Args:
        n_native: native tasks; evolved ones are limited by their number, also where none is used.
        n_evolved: evolved tasks that there are.
        lam: weight of all evolved tasks together, in [0, 1].
        ratio: most evolved tasks for each native one; the limit is rounded down.
        use_native: draw native tasks, too.

    Example:
        >>> mixture(7, 10, lam=0.4, ratio=0.5)[:2]
        (7, 3)

    Source: AgentEvolver (arXiv 2511.10395), Eq. 12, with the counts of its code.
    """
    native = n_native if use_native else 0
    evolved = min(int(n_native * ratio), n_evolved)
    return MixtureWeights(
        native,
        evolved,
        (1.0 - lam) / native if native else 0.0,
        lam / evolved if evolved else 0.0,
    )


_LOOP_CAP = 20


def judge_score(
    score: float | None, *, relevant: bool, looped: bool, achieved: bool
) -> float | None:
    """Return the reward that a judge's answer stands for.

    Args:
        score: 0 to 100; None where the judge gave none.
        relevant: whether the trajectory has to do with the task.
        looped: whether it was caught in a loop, which is worth 20 at most.
        achieved: whether it achieved the task, which asks for 60 or more.

    Returns:
        A number in [0, 1]; None for no verdict: no score, one between 40 and 60, or one that
        contradicts ``achieved``.

    Source: the judge of AgentEvolver's published code.
    """
    if not relevant:
        return 0.0
    if score is None or not 0 <= score <= 100 or 40 < score < 60 or achieved != (score >= 60):
        return None
    return min(score, _LOOP_CAP if looped else score) / 100
