"""verl-agent's advantages, computed from statistics that count each step as one sample.

A won episode earns 10, and each of its steps is a sample with that score. An invalid answer costs
its own step 0.1. Means and deviations over samples weigh long episodes more, and a group that only
failed still teaches the form of answers, because its samples differ by the penalty.

Source: the rules of verl-agent (GiGPO, arXiv 2505.10978) at its commit 796ed31, without the copies
of samples that it adds to fill a batch.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain, compress, islice
from typing import Literal

from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import Advantage
from coevo_gym.core.trajectory import Group, Step, TokenDecision, Trajectory
from coevo_gym.methods.verl_agent.answers import is_valid
from coevo_gym.trainers.advantages import (
    EPS,
    discounted_returns,
    relative_to_group,
    relative_to_state,
)
from coevo_gym.trainers.credit import States, exact_states

SUCCESS_REWARD = 10.0
"""Reward of an episode that solved its task."""
INVALID_PENALTY = 0.1
"""Default penalty for an invalid answer."""
Statistics = Literal["steps", "episodes"]
"""Units that the mean and deviation of a group's scores are computed over."""


def episode_reward(trajectory: Trajectory) -> float:
    """Return an episode's reward: 10 if it solved its task, else 0, whatever its partial score."""
    return SUCCESS_REWARD if trajectory.success else 0.0


def penalise_invalid(
    values: Sequence[float], valid: Sequence[bool], penalty: float = INVALID_PENALTY
) -> list[float]:
    """Subtract the penalty from the value of every step whose answer is invalid.

    Example:
        >>> penalise_invalid([10.0, 10.0, 10.0], [True, False, True])
        [10.0, 9.9, 10.0]
    """
    return [value - (0.0 if ok else penalty) for value, ok in zip(values, valid, strict=True)]


def relative_to_samples(scores: Sequence[float], *, normalise_std: bool = True) -> list[float]:
    """Compute the advantage of each step sample over the mean of its group's samples.

    Args:
        scores: score of each sample of a group, on any scale.
        normalise_std: divide by the samples' standard deviation (n - 1).

    Returns:
        One advantage per sample; 0 for equal scores. A sample that is alone in its group is
        compared with mean 0 and deviation 1, so it keeps its score.
    """
    if len(scores) != 1:
        return relative_to_group(scores, normalise_std=normalise_std)
    return [score / (1.0 + EPS) if normalise_std else score for score in scores]


def relative_to_episodes(
    rewards: Sequence[float], scores: Sequence[Sequence[float]], *, normalise_std: bool = True
) -> list[list[float]]:
    """Compute the advantage of each step sample over the mean of its group's episode rewards.

    Each episode counts once, regardless of its length, and penalties do not change the mean or the
    deviation.

    Args:
        rewards: (K,) reward of each episode, without penalties.
        scores: (K, T_k) score of each step.
        normalise_std: divide by the standard deviation (n - 1) of the rewards.

    Returns:
        (K, T_k) advantages; all 0 if the rewards are equal, because a group that teaches nothing
        has no deviation to measure penalties by.
    """
    centred = relative_to_group(rewards, normalise_std=False)
    if not any(centred):
        return [[0.0] * len(row) for row in scores]
    scale = 1.0
    if normalise_std:
        squares = math.fsum(value * value for value in centred)
        scale = math.sqrt(squares / (len(rewards) - 1)) + EPS
    mean = math.fsum(rewards) / len(rewards)
    return [[(score - mean) / scale for score in row] for row in scores]


def step_advantages(
    rewards: Sequence[float],
    valid_answers: Sequence[Sequence[bool]],
    states: Sequence[Sequence[Hashable]] | None = None,
    *,
    statistics: Statistics = "steps",
    penalty: float = INVALID_PENALTY,
    gamma: float = 0.95,
    outcome_weight: float = 1.0,
    state_weight: float = 1.0,
    normalise_std: bool = True,
) -> list[list[float]]:
    """Compute the advantage of each step in a group, with GRPO over samples or with GiGPO.

    Args:
        rewards: (K,) reward of each episode.
        valid_answers: (K, T_k) True for a valid answer.
        states: (K, T_k) state of each step, for GiGPO; None for GRPO.
        statistics: ``steps`` for statistics over samples, ``episodes`` for those over episodes.
        penalty: subtracted from the score and the return of a step with an invalid answer. It is
            not discounted to earlier steps.
        gamma: discount factor of the returns that are compared within a state.
        outcome_weight: weight of the advantage over the group.
        state_weight: weight of the advantage within the state; 0 for a state that occurred once.
        normalise_std: divide both parts by their sample standard deviations.

    Returns:
        (K, T_k) advantages.
    """
    scores = [
        penalise_invalid([reward] * len(valid), valid, penalty)
        for reward, valid in zip(rewards, valid_answers, strict=True)
    ]
    if statistics == "steps":
        flat = iter(relative_to_samples([*chain(*scores)], normalise_std=normalise_std))
        of_outcome = [list(islice(flat, len(row))) for row in scores]
    else:
        of_outcome = relative_to_episodes(rewards, scores, normalise_std=normalise_std)
    if states is None:
        return of_outcome
    returns = [
        penalise_invalid(_step_returns(reward, len(valid), gamma), valid, penalty)
        for reward, valid in zip(rewards, valid_answers, strict=True)
    ]
    of_state = relative_to_state(states, returns, normalise_std=normalise_std)
    return [
        [outcome_weight * a + state_weight * s for a, s in zip(*rows, strict=True)]
        for rows in zip(of_outcome, of_state, strict=True)
    ]


def _step_returns(reward: float, n_steps: int, gamma: float) -> list[float]:
    """Return each step's discounted return if the last step earns the reward."""
    return discounted_returns([0.0] * (n_steps - 1) + [reward], gamma) if n_steps else []


@dataclass(frozen=True)
class StepSamples:
    """An estimator that computes one advantage per step with :func:`step_advantages`.

    Lost trajectories get 0 and take no part in the statistics. Only answers of language models can
    be invalid; a choice among candidates is always valid.

    Attributes:
        states: function that assigns a state to each step, for GiGPO; None for GRPO.
        statistics, penalty, gamma, outcome_weight, state_weight, normalise_std: as in
            :func:`step_advantages`.
    """

    states: States | None = exact_states
    statistics: Statistics = "steps"
    penalty: float = INVALID_PENALTY
    gamma: float = 0.95
    outcome_weight: float = 1.0
    state_weight: float = 1.0
    normalise_std: bool = True

    def __call__(self, groups: Sequence[Group], notes: Notes) -> list[list[Advantage]]:
        """Return the advantages of the groups, one per step."""
        return [[*self._group_advantages(group)] for group in groups]

    def _group_advantages(self, group: Group) -> list[list[float]]:
        arrived = [not t.end_reason.is_lost for t in group.trajectories]
        trajectories = [*compress(group.trajectories, arrived)]
        judged = iter(
            step_advantages(
                [episode_reward(t) for t in trajectories],
                [[has_valid_answer(step) for step in t.steps] for t in trajectories],
                None if self.states is None else self.states(trajectories),
                statistics=self.statistics,
                penalty=self.penalty,
                gamma=self.gamma,
                outcome_weight=self.outcome_weight,
                state_weight=self.state_weight,
                normalise_std=self.normalise_std,
            )
        )
        both = zip(group.trajectories, arrived, strict=True)
        return [next(judged) if ok else [0.0] * len(t.steps) for t, ok in both]


def has_valid_answer(step: Step) -> bool:
    """Return True unless a language model answered a step in an invalid form."""
    return not isinstance(step.decision, TokenDecision) or is_valid(step.said or step.action)
