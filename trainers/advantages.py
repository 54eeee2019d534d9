"""How good each rollout of a group was, and each of its steps, against the others.

Pure functions of numbers, and :func:`judge`, which applies them to a group. GRPO (arXiv
2402.03300), Dr. GRPO (arXiv 2503.20783), RLOO (arXiv 2402.14740), GiGPO (arXiv 2505.10978), the
length penalty of DAPO (arXiv 2503.14476).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.curricula.session.groups import LOST
from coevo_gym.provision import extra_advice
from coevo_gym.trainers.parts import Advantage
from coevo_gym.trainers.segments import n_sampled
from coevo_gym.trainers.settings import GRPOConfig

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError as error:
    raise ImportError(f"GRPO needs PyTorch. {extra_advice('train')}.") from error


def group_advantages(
    rewards: Tensor, mask: Tensor | None = None, *, normalise_std: bool = True, eps: float = 1e-6
) -> Tensor:
    """Judge each rollout against the mean of its group (GRPO; without the division Dr. GRPO).

    Args:
        rewards: (G, K) outcome of each of the K rollouts of G tasks, any scale.
        mask: (G, K) bool, False where a rollout was lost; it is left out of mean and deviation.
        normalise_std: divide by the group's sample standard deviation.
        eps: added to the standard deviation.

    Returns:
        (G, K) advantages; 0 where masked, and all 0 in a group whose rewards are equal or of
        which fewer than two are left.

    Raises:
        ValueError: if K < 2, because a group of one has no baseline.
    """
    if rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ValueError(
            f"group_advantages needs (G, K) rewards with K >= 2, actual shape: "
            f"{tuple(rewards.shape)}"
        )
    valid = torch.ones_like(rewards, dtype=torch.bool) if mask is None else mask
    count = valid.sum(dim=1, keepdim=True)
    kept = rewards.masked_fill(~valid, 0.0)
    centred = (kept - kept.sum(dim=1, keepdim=True) / count.clamp(min=1)).masked_fill(~valid, 0.0)
    if normalise_std:
        variance = centred.square().sum(dim=1, keepdim=True) / (count - 1).clamp(min=1)
        centred = centred / (variance.sqrt() + eps)
    highest = rewards.masked_fill(~valid, -math.inf).amax(dim=1, keepdim=True)
    lowest = rewards.masked_fill(~valid, math.inf).amin(dim=1, keepdim=True)
    # Rounding in the mean of equal rewards, divided by eps, would not be 0.
    return centred.masked_fill((highest <= lowest) | (count < 2), 0.0)


def leave_one_out_advantages(rewards: Tensor, mask: Tensor | None = None) -> Tensor:
    """Judge each rollout against the mean of the others (RLOO).

    Args:
        rewards: (G, K) outcome of each of the K rollouts of G tasks, any scale.
        mask: (G, K) bool, False where a rollout was lost; it is no baseline to the others.

    Returns:
        (G, K) advantages, n / (n - 1) times the distance from the mean of the n that are left;
        0 as in :func:`group_advantages`.

    Raises:
        ValueError: if K < 2.
    """
    centred = group_advantages(rewards, mask, normalise_std=False)
    valid = torch.ones_like(rewards, dtype=torch.bool) if mask is None else mask
    count = valid.sum(dim=1, keepdim=True)
    return centred * count / (count - 1).clamp(min=1)


def returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """Discounted reward-to-go of each step."""
    found: list[float] = []
    for reward in reversed(rewards):
        found.append(reward + gamma * (found[-1] if found else 0.0))
    return found[::-1]


def step_advantages(
    states: Sequence[Sequence[str]],
    rewards: Sequence[Sequence[float]],
    *,
    gamma: float = 0.95,
    normalise_std: bool = True,
) -> list[list[float]]:
    """Judge steps of a group of rollouts that were taken in one and the same state (GiGPO's A_S).

    Args:
        states: of each trajectory, the state that each step was taken in; equal means equal text.
        rewards: of each trajectory, the reward of each step.
        gamma: discount.
        normalise_std: divide by the sample standard deviation of a state's returns.

    Returns:
        For each step, its return against the mean of the returns of all steps in its state; 0 in
        a state that was met once.

    Source: GiGPO, Eq. 6-8; states are compared within a group only.
    """
    values = [returns(trajectory, gamma) for trajectory in rewards]
    places: dict[str, list[tuple[int, int]]] = {}
    for i, trajectory in enumerate(states):
        for j, state in enumerate(trajectory):
            places.setdefault(state, []).append((i, j))
    found = [[0.0] * len(trajectory) for trajectory in states]
    for members in places.values():
        if len(members) < 2:
            continue
        met = torch.tensor([[values[i][j] for i, j in members]], dtype=torch.float64)
        judged = group_advantages(met, normalise_std=normalise_std)[0].tolist()
        for (i, j), value in zip(members, judged, strict=True):
            found[i][j] = value
    return found


def gigpo_advantages(
    outcomes: Tensor,
    states: Sequence[Sequence[str]],
    rewards: Sequence[Sequence[float]],
    mask: Tensor | None = None,
    *,
    gamma: float = 0.95,
    weight: float = 1.0,
    normalise_std: bool = True,
) -> list[list[float]]:
    """Judge each step of a group by its episode and by its state: A = A_E + weight * A_S (GiGPO).

    Args:
        outcomes: (1, K) outcome of each trajectory; it makes A_E.
        states: as in :func:`step_advantages`.
        rewards: as in :func:`step_advantages`; they make A_S.
        mask: (1, K) bool, False where a rollout was lost; neither part sees it.
        gamma: discount of A_S.
        weight: of A_S.
        normalise_std: of both parts.

    Returns:
        One advantage for each step of each trajectory; 0 where masked.

    Source: GiGPO, Eq. 3-8. A trajectory counts once in A_E, however long it is.
    """
    episodes = group_advantages(outcomes, mask, normalise_std=normalise_std)[0].tolist()
    valid = [True] * len(states) if mask is None else mask[0].tolist()
    seen = [one if ok else [] for one, ok in zip(states, valid, strict=True)]
    earned = [one if ok else [] for one, ok in zip(rewards, valid, strict=True)]
    steps = step_advantages(seen, earned, gamma=gamma, normalise_std=normalise_std)
    return [
        [a + weight * s for s in judged] if ok else [0.0] * len(one)
        for a, judged, one, ok in zip(episodes, steps, states, valid, strict=True)
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


def judge(group: Group, config: GRPOConfig) -> list[Advantage]:
    """Advantages of a group's trajectories; lost rollouts have 0, and no other is compared to them.

    With GiGPO one for each step: a step's state is its observation, and the outcome is earned by
    the last step.
    """
    trajectories, std = group.trajectories, config.normalise_std
    rewards = [_reward(trajectory, config) for trajectory in trajectories]
    outcomes = torch.tensor([rewards], dtype=torch.float64)
    mask = torch.tensor([[t.end_reason not in LOST for t in trajectories]])
    if config.advantage == "gigpo":
        states = [[step.observation for step in t.steps] for t in trajectories]
        earned = [
            [0.0] * (len(t.steps) - 1) + [reward] if t.steps else []
            for t, reward in zip(trajectories, rewards, strict=True)
        ]
        return [*gigpo_advantages(outcomes, states, earned, mask, normalise_std=std)]
    if config.advantage == "rloo":
        return [*leave_one_out_advantages(outcomes, mask)[0].tolist()]
    return [*group_advantages(outcomes, mask, normalise_std=std)[0].tolist()]


def _reward(trajectory: Trajectory, config: GRPOConfig) -> float:
    outcome = float(getattr(trajectory, config.outcome))
    if config.overlong != "penalty":
        return outcome
    decisions = (step.decision for step in trajectory.steps)
    return outcome + overlong_penalty(
        sum(n_sampled(decision) for decision in decisions if decision is not None),
        max_tokens=config.overlong_max_tokens,
        buffer_tokens=config.overlong_buffer_tokens,
    )
