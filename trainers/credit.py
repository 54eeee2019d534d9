"""Credit: how outcomes and notes become advantages.

An estimator says how good each trajectory of a group was, or each of its steps; transforms change
that. All of it is lists of floats: no PyTorch, no state, so the same credit serves our learner and
other people's (:mod:`coevo_gym.trainers.spread`).

| estimator | advantage of a trajectory |
|---|---|
| `GroupRelative` | its reward against its group's mean (GRPO, Dr. GRPO) |
| `LeaveOneOut` | its reward against the mean of the others (RLOO) |
| `StateGrouped` | one a step: the above, and the step against others in the same state (GiGPO) |
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from coevo_gym.core.notes import NO_NOTES, Notes
from coevo_gym.core.seams import Advantage, Estimator, Transform
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.trainers.advantages import (
    overlong_penalty,
    relative_to_group,
    relative_to_group_and_state,
    relative_to_others,
    returns,
)
from coevo_gym.trainers.likeness import Measure, group_states
from coevo_gym.trainers.segments import n_sampled
from coevo_gym.trainers.settings import GRPOConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Credit:
    """An estimator, and transforms of what it says, one after the other.

    Example:
        >>> def halved(groups, notes, advantages):
        ...     return [[a / 2 for a in of_group] for of_group in advantages]
        >>> credit = Credit(GroupRelative(), transforms=(halved,))
        >>> credit([])  # a list of advantages for each group
        []
    """

    estimator: Estimator
    transforms: tuple[Transform, ...] = ()

    def __call__(self, groups: Sequence[Group], notes: Notes = NO_NOTES) -> list[list[Advantage]]:
        """One advantage for each trajectory of each group, or one for each of its steps."""
        advantages = self.estimator(groups, notes)
        for transform in self.transforms:
            advantages = transform(groups, notes, advantages)
        return advantages


class Overlong(NamedTuple):
    """The length penalty of DAPO; see :func:`~coevo_gym.trainers.advantages.overlong_penalty`."""

    max_tokens: int
    buffer_tokens: int


@dataclass(frozen=True)
class Outcome:
    """The reward of a trajectory.

    Attributes:
        of: the binary success, or the benchmark's score.
        overlong: what long trajectories lose of it; None for nothing.
    """

    of: Literal["success", "score"] = "success"
    overlong: Overlong | None = None

    def __call__(self, trajectory: Trajectory) -> float:
        """A number in [-1, 1]; below 0 only by a penalty."""
        outcome = float(getattr(trajectory, self.of))
        if self.overlong is None:
            return outcome
        decisions = (step.decision for step in trajectory.steps)
        sampled = sum(n_sampled(decision) for decision in decisions if decision is not None)
        return outcome + overlong_penalty(sampled, **self.overlong._asdict())


@dataclass(frozen=True)
class GroupRelative:
    """A trajectory's reward against the mean of its group.

    Attributes:
        outcome: its reward.
        normalise_std: divide by the group's standard deviation (False: Dr. GRPO).
    """

    outcome: Outcome = Outcome()
    normalise_std: bool = True

    def __call__(self, groups: Sequence[Group], notes: Notes) -> list[list[Advantage]]:
        """See :func:`~coevo_gym.trainers.advantages.relative_to_group`."""
        return [
            [*relative_to_group(*_rewards(group, self.outcome), normalise_std=self.normalise_std)]
            for group in groups
        ]


@dataclass(frozen=True)
class LeaveOneOut:
    """A trajectory's reward against the mean of the others of its group; never divided."""

    outcome: Outcome = Outcome()

    def __call__(self, groups: Sequence[Group], notes: Notes) -> list[list[Advantage]]:
        """See :func:`~coevo_gym.trainers.advantages.relative_to_others`."""
        return [[*relative_to_others(*_rewards(group, self.outcome))] for group in groups]


class StepWorth(Protocol):
    """What each step of a group's trajectories is worth, before steps are compared."""

    def __call__(
        self, group: Group, rewards: Sequence[float], notes: Notes
    ) -> Sequence[Sequence[float]]:
        """A number for each step of each trajectory.

        Args:
            group: the trajectories.
            rewards: (K,) reward of each of them.
            notes: what studies have said of them.
        """
        ...


@dataclass(frozen=True)
class AtTheEnd:
    """The return of a step where the last one earns the trajectory's reward."""

    gamma: float = 0.95

    def __call__(
        self, group: Group, rewards: Sequence[float], notes: Notes
    ) -> Sequence[Sequence[float]]:
        """See :class:`StepWorth`."""
        lengths = [len(trajectory.steps) for trajectory in group.trajectories]
        return [
            returns([0.0] * (n - 1) + [reward], self.gamma) if n else []
            for n, reward in zip(lengths, rewards, strict=True)
        ]


@dataclass(frozen=True)
class Earned:
    """The return of a step where each earns the reward that the env gave for it."""

    gamma: float = 0.95

    def __call__(
        self, group: Group, rewards: Sequence[float], notes: Notes
    ) -> Sequence[Sequence[float]]:
        """See :class:`StepWorth`."""
        earned = [[step.reward for step in t.steps] for t in group.trajectories]
        return [returns(one, self.gamma) for one in earned]


class States(Protocol):
    """Which steps of a group were taken in the same state."""

    def __call__(self, trajectories: Sequence[Trajectory]) -> Sequence[Sequence[Hashable]]:
        """Of each trajectory, the state of each step; equal where the state is the same."""
        ...


def exact(trajectories: Sequence[Trajectory]) -> list[list[str]]:
    """States that are equal observations."""
    return [[step.observation for step in trajectory.steps] for trajectory in trajectories]


@dataclass(frozen=True)
class Similar:
    """States whose observations are alike; a warning names some of the first that were merged.

    Attributes:
        threshold: likeness above which two observations are one state. At 0.9 "desk 1" and "desk
            2" are one in a text of 18 characters.
        measure: what is compared.
    """

    threshold: float = 0.9
    measure: Measure = "lcs"
    _told: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[list[int]]:
        """See :class:`States`; observations are taken in the order of trajectories and steps."""
        observations = exact(trajectories)
        texts = [text for one in observations for text in one]
        found = group_states(texts, threshold=self.threshold, measure=self.measure)
        for leader, text in found.merged[: max(0, _TOLD_AT_MOST - len(self._told))]:
            self._told.append(text)
            logger.warning("states taken for one: %.200r and %.200r", leader, text)
        numbers = iter(found.numbers)
        return [[next(numbers) for _ in one] for one in observations]


_TOLD_AT_MOST = 5
"""Pairs of merged states that are logged."""


@dataclass(frozen=True)
class StateGrouped:
    """Each step by its trajectory and by its state: A = w_o A_E + w_s A_S (GiGPO).

    Attributes:
        worth: what a step is worth; a state's steps are compared by it.
        states: which steps are compared.
        outcome: the reward of a trajectory.
        outcome_weight: weight of A_E, the trajectory against its group.
        state_weight: weight of A_S, the step against others in its state.
        normalise_std: divide both parts by their standard deviations.
    """

    worth: StepWorth = AtTheEnd()
    states: States = exact
    outcome: Outcome = Outcome()
    outcome_weight: float = 1.0
    state_weight: float = 1.0
    normalise_std: bool = True

    def __call__(self, groups: Sequence[Group], notes: Notes) -> list[list[Advantage]]:
        """See :func:`~coevo_gym.trainers.advantages.relative_to_group_and_state`."""
        return [[*self._judge(group, notes)] for group in groups]

    def _judge(self, group: Group, notes: Notes) -> list[list[float]]:
        rewards, valid = _rewards(group, self.outcome)
        return relative_to_group_and_state(
            rewards,
            self.states(group.trajectories),
            self.worth(group, rewards, notes),
            valid,
            outcome_weight=self.outcome_weight,
            state_weight=self.state_weight,
            normalise_std=self.normalise_std,
        )


def credit_of(config: GRPOConfig) -> Credit:
    """The credit that a learner's settings name."""
    overlong = None
    if config.overlong == "penalty":
        overlong = Overlong(config.overlong_max_tokens, config.overlong_buffer_tokens)
    outcome = Outcome(config.outcome, overlong)
    if config.advantage == "rloo":
        return Credit(LeaveOneOut(outcome))
    if config.advantage == "gigpo":
        return Credit(
            StateGrouped(
                AtTheEnd() if config.state_rewards == "at_the_end" else Earned(),
                exact if config.states == "exact" else Similar(measure=config.state_likeness),
                outcome,
                config.outcome_weight,
                config.state_weight,
                config.normalise_std,
            )
        )
    return Credit(GroupRelative(outcome, config.normalise_std))


def _rewards(group: Group, outcome: Outcome) -> tuple[list[float], list[bool]]:
    """(K,) rewards, and (K,) whether the rollout was not lost."""
    rewards = [outcome(trajectory) for trajectory in group.trajectories]
    return rewards, [not t.end_reason.lost for t in group.trajectories]
