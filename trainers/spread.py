"""Advantages of trajectories and steps, spread over what a policy sampled.

For our own learners, and for others that take one advantage a token: with this they learn from
steps of their own worth, where a trainer that knows one number for a whole episode learns from
their mean alone.

Example:
    >>> from coevo_gym.core.trajectory import EndReason, TokenDecision
    >>> from coevo_gym.trainers.segments import segments
    >>> first = TokenDecision(prompt_ids=(1, 2), ids=(3, 4), logprobs=(-0.5, -0.5))
    >>> second = TokenDecision(prompt_ids=(1, 2, 3, 4, 5), ids=(6,), logprobs=(-0.1,))
    >>> trajectory = Trajectory(
    ...     task_id="t",
    ...     steps=(Step("o", "o", "a", first), Step("o", "o", "a", second)),
    ...     score=1.0,
    ...     success=True,
    ...     end_reason=EndReason.SOLVED,
    ... )
    >>> token_advantages(trajectory, [0.5, -1.0])  # one a step, as step credit gives them
    [[0.5, 0.5, -1.0]]

    Trainers such as verl take a (B, T) tensor of advantages beside a mask of the response. What
    the env wrote has no advantage, so a row of it is filled in where the policy sampled:

    >>> (segment,) = segments([first, second])
    >>> values = iter(token_advantages(trajectory, [0.5, -1.0])[0])
    >>> [next(values) if mine else 0.0 for mine in segment.sampled[len(first.prompt_ids) :]]
    [0.5, 0.5, 0.0, -1.0]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from coevo_gym.core.seams import Advantage, StepAdvantage
from coevo_gym.core.trajectory import (
    ChoiceDecision,
    Decision,
    Sample,
    Step,
    Trajectory,
)
from coevo_gym.trainers.segments import n_sampled, samples


def teaches(advantages: Iterable[Advantage]) -> bool:
    """Return whether any advantage of a group is not 0."""
    return any(teaches(a) if isinstance(a, Sequence) else a for a in advantages)


class Spread(NamedTuple):
    """What is trained on of a trajectory.

    Attributes:
        decisions: those of its steps that have any, in order.
        samples: the choices, and the token decisions as segments.
        advantages: a list for each sample, a number for each of its sampled positions.
    """

    decisions: list[Decision]
    samples: tuple[Sample, ...]
    advantages: list[list[float]]


def spread(trajectory: Trajectory, advantage: Advantage) -> Spread:
    """Lay a trajectory's decisions into samples, each sampled position with its advantage.

    Args:
        trajectory: what was sampled.
        advantage: one number for all of it, or one for each step; that of a step may be a list of
            one for each sampled id.

    Raises:
        ValueError: if there is not one for each step or id, or a step's action is not what its
            decision chose.
    """
    steps = trajectory.steps
    per_step = advantage if isinstance(advantage, Sequence) else [advantage] * len(steps)
    if len(per_step) != len(steps):
        raise ValueError(f"{len(per_step)} advantages are given for {len(steps)} steps.")
    decisions: list[Decision] = []
    flat: list[float] = []
    for step, value in zip(steps, per_step, strict=True):
        if step.decision is not None:
            decisions.append(_checked(step))
            flat += _per_position(step.decision, value)
    laid_out = samples(decisions)
    # The positions of the samples, in order, are those of the decisions.
    values = iter(flat)
    return Spread(
        decisions, laid_out, [list(islice(values, n_sampled(sample))) for sample in laid_out]
    )


def token_advantages(trajectory: Trajectory, advantage: Advantage) -> list[list[float]]:
    """The advantage of each sampled id, a list for each segment of a trajectory.

    A choice counts as a segment with one id. See :func:`spread`.
    """
    return spread(trajectory, advantage).advantages


def _per_position(decision: Decision, value: StepAdvantage) -> list[float]:
    n = n_sampled(decision)
    if not isinstance(value, Sequence):
        return [value] * n
    if len(value) != n:
        raise ValueError(f"{len(value)} advantages are given for the {n} ids of a decision.")
    return list(value)


def _checked(step: Step) -> Decision:
    decision = step.decision
    assert decision is not None
    if isinstance(decision, ChoiceDecision):
        chosen = decision.choices[decision.index]
        if chosen != step.action:
            raise ValueError(
                f"A step's decision chose {chosen!r}, but its action was {step.action!r}; "
                "only what was sampled can be learned from."
            )
    return decision
