"""Functions that assign trajectory and step advantages to sampled positions.

The built-in learners use them, as do external trainers that accept one advantage per token. Such
trainers can then learn from step-level advantages. A trainer that accepts only one number per
episode learns from the mean of the step advantages.

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
    >>> token_advantages(trajectory, [0.5, -1.0])  # one advantage per step
    [[0.5, 0.5, -1.0]]

    Trainers such as verl take a (B, T) tensor of advantages along with a response mask. Env tokens
    have no advantage, so fill in a row only at sampled positions:

    >>> (segment,) = segments([first, second])
    >>> values = iter(token_advantages(trajectory, [0.5, -1.0])[0])
    >>> [next(values) if mine else 0.0 for mine in segment.sampled[len(first.prompt_ids) :]]
    [0.5, 0.5, 0.0, -1.0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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


def has_learning_signal(advantages: Iterable[Advantage]) -> bool:
    """Return True if any advantage in a group is non-zero."""
    return any(has_learning_signal(a) if isinstance(a, Sequence) else a for a in advantages)


def map_advantage(advantage: Advantage, change: Callable[[float], float]) -> Advantage:
    """Apply a function to an advantage, or to each number in a nested list of advantages.

    Example:
        >>> map_advantage([1.0, [2.0, -1.0]], lambda number: number / 2)
        [0.5, [1.0, -0.5]]
    """
    if isinstance(advantage, (int, float)):
        return change(advantage)
    return [
        change(step) if isinstance(step, (int, float)) else [change(one) for one in step]
        for step in advantage
    ]


class Spread(NamedTuple):
    """A trajectory's training samples, with an advantage for each position.

    Attributes:
        decisions: decisions of all steps that have a decision, in order.
        samples: choices, and token decisions joined into segments.
        advantages: one list per sample, with one number per sampled position.
    """

    decisions: list[Decision]
    samples: tuple[Sample, ...]
    advantages: list[list[float]]


def assign_advantages(trajectory: Trajectory, advantage: Advantage) -> Spread:
    """Convert a trajectory's decisions to samples with an advantage at each sampled position.

    An advantage is one number for the whole trajectory, or one entry per step; a step's entry is a
    number, or a list with one number per sampled id.

    Raises:
        ValueError: if the number of advantages does not match the steps or ids, or a step's action
            differs from the recorded decision.
    """
    steps = trajectory.steps
    per_step = advantage if isinstance(advantage, Sequence) else [advantage] * len(steps)
    if len(per_step) != len(steps):
        raise ValueError(f"Got {len(per_step)} advantages for {len(steps)} steps.")
    decisions: list[Decision] = []
    flat: list[float] = []
    for step, value in zip(steps, per_step, strict=True):
        if step.decision is not None:
            decisions.append(_require_matching_decision(step))
            flat += _advantages_per_position(step.decision, value)
    laid_out = samples(decisions)
    # The samples' positions are in the same order as the decisions' positions.
    values = iter(flat)
    return Spread(
        decisions, laid_out, [list(islice(values, n_sampled(sample))) for sample in laid_out]
    )


def token_advantages(trajectory: Trajectory, advantage: Advantage) -> list[list[float]]:
    """Return the advantage of every sampled token, as one list per segment.

    A choice counts as a segment with one id. See :func:`assign_advantages`.
    """
    return assign_advantages(trajectory, advantage).advantages


def _advantages_per_position(decision: Decision, value: StepAdvantage) -> list[float]:
    n = n_sampled(decision)
    if not isinstance(value, Sequence):
        return [value] * n
    if len(value) != n:
        raise ValueError(f"Got {len(value)} advantages for a decision with {n} sampled tokens.")
    return list(value)


def _require_matching_decision(step: Step) -> Decision:
    decision = step.decision
    assert decision is not None
    if isinstance(decision, ChoiceDecision):
        chosen = decision.choices[decision.index]
        if chosen != step.action:
            raise ValueError(
                f"In one step, the action taken ({step.action!r}) differs from the recorded "
                f"decision ({chosen!r}). Only sampled actions can be used for training."
            )
    return decision
