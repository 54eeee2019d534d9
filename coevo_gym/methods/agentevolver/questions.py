"""Formulas for training on self-generated tasks, such as converting verdicts to rewards."""

from __future__ import annotations

from typing import NamedTuple


def shown(step: int, breadth: int, depth: int) -> range:
    """Return the indices of the observations that an explorer receives at a step.

    Args:
        step: number of steps taken so far.
        breadth: N_b, number of steps in breadth, in which all observations are shown.
        depth: N_d, number of latest observations to show afterwards, including the current one.

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
        n_evolved: number of evolved tasks to draw from, starting with the first.
        native_weight: weight of each native task; 0 if there are none.
        evolved_weight: weight of each of the first evolved tasks; 0 if there are none.
    """

    n_native: int
    n_evolved: int
    native_weight: float
    evolved_weight: float


def mixture(
    n_native: int, n_evolved: int, *, lam: float, ratio: float, use_native: bool = True
) -> MixtureWeights:
    """Compute the mixture of native and evolved tasks.

    Args:
        n_native: number of native tasks, which limits evolved tasks even if native tasks are not
            used.
        n_evolved: number of evolved tasks.
        lam: weight of all evolved tasks together, in [0, 1].
        ratio: maximum evolved tasks per native task; the limit is rounded down.
        use_native: True to also draw native tasks.

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
    """Convert a judge's answer to a reward.

    Args:
        score: score from 0 to 100; None if the judge did not give a score.
        relevant: True if the trajectory is relevant to the task.
        looped: True if the agent was caught in a loop, which limits the score to 20.
        achieved: True if the task was achieved, which requires a score of at least 60.

    Returns:
        The reward in [0, 1]; None if the score is missing, unclear (40 to 60) or contradictory.

    Source: the judge in AgentEvolver's published code.
    """
    if not relevant:
        return 0.0
    if score is None or not 0 <= score <= 100 or 40 < score < 60 or achieved != (score >= 60):
        return None
    return min(score, _LOOP_CAP if looped else score) / 100
