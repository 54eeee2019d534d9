"""How good each rollout of a group was, and each of its steps, against the others.

Pure functions of numbers, without PyTorch; :mod:`coevo_gym.trainers.credit` applies them to groups.
GRPO (arXiv 2402.03300), Dr. GRPO (arXiv 2503.20783), RLOO (arXiv 2402.14740), GiGPO (arXiv
2505.10978), PPO's GAE (arXiv 1506.02438), the length penalty of DAPO (arXiv 2503.14476).

Sums are correctly rounded (``math.fsum``): what a rollout is worth does not depend on its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from coevo_gym.core.seams import StepAdvantage

if TYPE_CHECKING:
    from torch import Tensor

EPS = 1e-6
"""Added to the standard deviation of a group."""


def relative_to_group(
    rewards: Sequence[float],
    valid: Sequence[bool] | None = None,
    *,
    normalise_std: bool = True,
    eps: float = EPS,
) -> list[float]:
    """Judge each rollout against the mean of its group (GRPO; without the division Dr. GRPO).

    Args:
        rewards: (K,) outcome of each rollout of a task, any scale.
        valid: (K,) False where a rollout was lost; it is left out of mean and deviation.
        normalise_std: divide by the group's sample standard deviation.
        eps: added to the standard deviation.

    Returns:
        (K,) advantages; 0 where a rollout was lost, and all 0 in a group whose rewards are equal
        or of which fewer than two are left.
    """
    kept = _kept(rewards, valid)
    if len(kept) < 2 or min(kept) == max(kept):  # rounding in a mean, divided by eps, is not 0
        return [0.0] * len(rewards)
    mean = math.fsum(kept) / len(kept)
    scale = 1.0
    if normalise_std:
        squares = math.fsum((reward - mean) * (reward - mean) for reward in kept)
        scale = math.sqrt(squares / (len(kept) - 1)) + eps
    found = ((reward - mean) / scale for reward in rewards)
    return _where(valid, found)


def relative_to_others(
    rewards: Sequence[float], valid: Sequence[bool] | None = None
) -> list[float]:
    """Judge each rollout against the mean of the others (RLOO).

    Args:
        rewards: (K,) outcome of each rollout of a task, any scale.
        valid: (K,) False where a rollout was lost; it is no baseline to the others.

    Returns:
        (K,) advantages, n / (n - 1) times the distance from the mean of the n that are left; 0 as
        in :func:`relative_to_group`.
    """
    n = len(_kept(rewards, valid))
    centred = relative_to_group(rewards, valid, normalise_std=False)
    return [value * n / max(n - 1, 1) for value in centred]


def returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """Discounted reward-to-go of each step."""
    found: list[float] = []
    for reward in reversed(rewards):
        found.append(reward + gamma * (found[-1] if found else 0.0))
    return found[::-1]


def gae(
    rewards: Sequence[float], values: Sequence[float], *, gamma: float, lam: float
) -> list[float]:
    """Judge each step against what was expected of it (generalised advantage estimation).

    Args:
        rewards: (T,) what each step of one trajectory earned.
        values: (T,) what was expected to be earned from each step on.
        gamma: discount.
        lam: 1 for the return less the value, 0 for one step's surprise.

    Returns:
        (T,) advantages; with the values added they are what the values should have been. After the
        last step nothing is expected.

    Source: Schulman et al., arXiv 1506.02438, Eq. 16.
    """
    expected = [*values, 0.0][1:]
    surprises = [
        reward + gamma * later - value
        for reward, value, later in zip(rewards, values, expected, strict=True)
    ]
    return returns(surprises, gamma * lam)


class Estimate(NamedTuple):
    """What was expected of a trajectory, and what came of it.

    Attributes:
        advantage: one for each step, or of each step one for each sampled position.
        values: of each sampled position, before the update.
        targets: what these should have been; 0 where there is none.
        valued: whether a position has a value: each one, or the first of each decision.
    """

    advantage: list[StepAdvantage]
    values: list[float]
    targets: list[float]
    valued: list[bool]


def turn_estimate(
    rewards: Sequence[float],
    lengths: Sequence[int],
    values: Sequence[float],
    *,
    gamma: float,
    lam: float,
) -> Estimate:
    """Judge each decision by the value at its first position; its tokens share the advantage.

    Args:
        rewards: (S,) reward of each step.
        lengths: (S,) sampled positions of each step; 0 where a step was not decided. What such a
            step earned was earned by the decision before it.
        values: value of each position, in order.
        gamma: discount from one decision to the next.
        lam: lambda of GAE.
    """
    starts = [0, *accumulate(lengths)]
    decided = [step for step, n in enumerate(lengths) if n]
    expected = [values[starts[step]] for step in decided]
    judged = gae(_by_decision(rewards, lengths), expected, gamma=gamma, lam=lam)
    advantage: list[StepAdvantage] = [0.0] * len(lengths)
    targets, valued = [0.0] * len(values), [False] * len(values)
    for step, value, found in zip(decided, expected, judged, strict=True):
        advantage[step] = found
        targets[starts[step]], valued[starts[step]] = value + found, True
    return Estimate(advantage, list(values), targets, valued)


def token_estimate(
    rewards: Sequence[float],
    lengths: Sequence[int],
    values: Sequence[float],
    *,
    gamma: float,
    lam: float,
) -> Estimate:
    """Judge each sampled position; what a decision earns is earned by its last one.

    Args:
        rewards: as in :func:`turn_estimate`.
        lengths: as in :func:`turn_estimate`.
        values: as in :func:`turn_estimate`.
        gamma: discount from one position to the next.
        lam: lambda of GAE.
    """
    decided = [n for n in lengths if n]
    earned: list[float] = []
    for n, reward in zip(decided, _by_decision(rewards, lengths), strict=True):
        earned += [0.0] * (n - 1) + [reward]
    judged = gae(earned, values, gamma=gamma, lam=lam)
    positions = iter(judged)
    advantage: list[StepAdvantage] = [[next(positions) for _ in range(n)] for n in lengths]
    targets = [value + found for value, found in zip(values, judged, strict=True)]
    return Estimate(advantage, list(values), targets, [True] * len(values))


def _by_decision(rewards: Sequence[float], lengths: Sequence[int]) -> list[float]:
    """Rewards of the steps that were decided, each with those of the undecided ones after it."""
    found: list[float] = []
    for reward, n in zip(rewards, lengths, strict=True):
        if n:
            found.append(reward)
        elif found:
            found[-1] += reward
    return found


def relative_to_state(
    states: Sequence[Sequence[Hashable]],
    worth: Sequence[Sequence[float]],
    *,
    normalise_std: bool = True,
) -> list[list[float]]:
    """Judge steps of a group of rollouts that were taken in one and the same state (GiGPO's A_S).

    Args:
        states: of each trajectory, the state that each step was taken in; hashable, and equal
            where the state is the same.
        worth: of each trajectory, what each step is worth, such as its return.
        normalise_std: divide by the sample standard deviation within a state.

    Returns:
        For each step, its worth against the mean of all steps in its state; 0 in a state that was
        met once.

    Source: GiGPO, Eq. 6-8; states are compared within a group only.
    """
    places: dict[Hashable, list[tuple[int, int]]] = {}
    for i, trajectory in enumerate(states):
        for j, state in enumerate(trajectory):
            places.setdefault(state, []).append((i, j))
    found = [[0.0] * len(trajectory) for trajectory in states]
    for members in places.values():
        judged = relative_to_group([worth[i][j] for i, j in members], normalise_std=normalise_std)
        for (i, j), value in zip(members, judged, strict=True):
            found[i][j] = value
    return found


def relative_to_group_and_state(
    rewards: Sequence[float],
    states: Sequence[Sequence[Hashable]],
    worth: Sequence[Sequence[float]],
    valid: Sequence[bool] | None = None,
    *,
    outcome_weight: float = 1.0,
    state_weight: float = 1.0,
    normalise_std: bool = True,
) -> list[list[float]]:
    """Judge each step of a group by its trajectory and by its state: w_o A_E + w_s A_S (GiGPO).

    Args:
        rewards: (K,) outcome of each trajectory; it makes A_E.
        states: as in :func:`relative_to_state`.
        worth: as in :func:`relative_to_state`; it makes A_S.
        valid: (K,) False where a rollout was lost; neither part sees it.
        outcome_weight: of A_E.
        state_weight: of A_S.
        normalise_std: of both parts.

    Returns:
        One advantage for each step of each trajectory; 0 where a rollout was lost.

    Source: GiGPO, Eq. 3-8. A trajectory counts once in A_E, however long it is.
    """
    taken = [True] * len(rewards) if valid is None else valid
    of_trajectory = relative_to_group(rewards, taken, normalise_std=normalise_std)
    of_step = relative_to_state(
        [one if ok else () for one, ok in zip(states, taken, strict=True)],
        [one if ok else () for one, ok in zip(worth, taken, strict=True)],
        normalise_std=normalise_std,
    )
    return [
        [outcome_weight * a + state_weight * s for s in judged] if ok else [0.0] * len(one)
        for a, judged, one, ok in zip(of_trajectory, of_step, states, taken, strict=True)
    ]


def overlong_penalty(tokens: int, *, max_tokens: int, buffer_tokens: int) -> float:
    """Punishment for length, to be added to the reward (DAPO, Eq. 13).

    Args:
        tokens: sampled tokens of the trajectory.
        max_tokens: from here on it is -1.
        buffer_tokens: it falls from 0 to -1 over so many tokens below ``max_tokens``.

    Returns:
        A number in [-1, 0].
    """
    over = tokens - (max_tokens - buffer_tokens)
    return -min(max(over, 0) / buffer_tokens, 1.0)


# The same on tensors, for learners that hold their rewards in one.


def group_advantages(
    rewards: Tensor, mask: Tensor | None = None, *, normalise_std: bool = True, eps: float = EPS
) -> Tensor:
    """:func:`relative_to_group` of each row of (G, K) rewards, with a (G, K) bool mask.

    Raises:
        ValueError: if K < 2, because a group of one has no baseline.
    """

    def judge(row: list[float], valid: list[bool] | None) -> list[float]:
        return relative_to_group(row, valid, normalise_std=normalise_std, eps=eps)

    return _by_row(judge, rewards, mask)


def leave_one_out_advantages(rewards: Tensor, mask: Tensor | None = None) -> Tensor:
    """:func:`relative_to_others` of each row of (G, K) rewards, with a (G, K) bool mask.

    Raises:
        ValueError: if K < 2.
    """
    return _by_row(relative_to_others, rewards, mask)


def _by_row(
    judge: Callable[[list[float], list[bool] | None], list[float]],
    rewards: Tensor,
    mask: Tensor | None,
) -> Tensor:
    if rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ValueError(
            "Advantages within groups need (G, K) rewards with K >= 2, actual shape: "
            f"{tuple(rewards.shape)}"
        )
    valid = [None] * len(rewards) if mask is None else mask.tolist()
    rows = zip(rewards.tolist(), valid, strict=True)
    return rewards.new_tensor([judge(row, one) for row, one in rows])


def _kept(rewards: Sequence[float], valid: Sequence[bool] | None) -> list[float]:
    if valid is None:
        return list(rewards)
    return [reward for reward, ok in zip(rewards, valid, strict=True) if ok]


def _where(valid: Sequence[bool] | None, values: Iterator[float]) -> list[float]:
    if valid is None:
        return list(values)
    return [value if ok else 0.0 for value, ok in zip(values, valid, strict=True)]
