"""Numbers of self-questioning: the explorer's view, the mixture of tasks, the judge's score."""

from __future__ import annotations

from typing import NamedTuple


def shown(step: int, breadth: int, depth: int) -> range:
    """Return the observations that an explorer sees at a step.

    Args:
        step: steps taken so far.
        breadth: N_b, steps in breadth, in which all observations are shown.
        depth: N_d, latest observations to show after that, the present one included.

    Example:
        >>> list(shown(2, 3, 2)), list(shown(5, 3, 2))
        ([0, 1, 2], [4, 5])

    Source: AgentEvolver (arXiv 2511.10395), 3.1.
    """
    return range(0 if step < breadth else max(0, step - depth + 1), step + 1)


class MixtureWeights(NamedTuple):
    """The mixture of native and evolved tasks.

    Attributes:
        n_native: number of native tasks to draw from.
        n_evolved: number of evolved tasks to draw from, the first ones.
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
    """Return the mixture of native and evolved tasks.

    Args:
        n_native: number of native tasks; it limits the evolved ones even if no native task is
            used.
        n_evolved: number of evolved tasks.
        lam: weight of all evolved tasks together, in [0, 1].
        ratio: maximum evolved tasks per native task; the limit is rounded down.
        use_native: also draw native tasks.

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
    """Return the reward for a judge's answer.

    Args:
        score: 0 to 100; None where the judge gave none.
        relevant: True if the trajectory is relevant to the task.
        looped: True if it was caught in a loop; the score is then 20 at most.
        achieved: True if it achieved the task; the score is then 60 or more.

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
