"""Segments: decisions joined into token sequences that each need only one forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import or_
from typing import NamedTuple

from coevo_gym.core.trajectory import (
    ChoiceDecision,
    Decision,
    Sample,
    Segment,
    TokenDecision,
    Trajectory,
)


def segments(decisions: Sequence[TokenDecision]) -> tuple[Segment, ...]:
    """Join consecutive decisions into segments, as long as each prompt extends the previous text.

    A new segment starts when a prompt does not begin with all tokens so far (because a context
    manager changed it, or it was tokenised again), or when the temperature changes. Each sampled
    token keeps exactly the context it was sampled in, except for stripped cues: if a decision has
    ``trained_prompt_ids``, they replace its prompt.

    Returns:
        The segments. Their sampled positions, concatenated, are the decisions' ids in order: the
        first ``len(decisions[0].ids)`` belong to the first decision, and so on.

    Raises:
        ValueError: if a decision has no prompt, because its first token would have no context.
    """
    parts: list[Segment] = []
    open_: list[TokenDecision] = []
    so_far: tuple[int, ...] = ()
    for decision in decisions:
        if not decision.ids:
            continue
        prompt_ids = _prompt_to_train_on(decision)
        if not prompt_ids:
            raise ValueError("Cannot train on a decision without prompt ids.")
        goes_on = (
            open_
            and decision.temperature == open_[0].temperature
            and prompt_ids[: len(so_far)] == so_far
        )
        if open_ and not goes_on:
            parts.append(_join_decisions(open_))
            open_ = []
        open_.append(decision)
        so_far = prompt_ids + decision.ids
    return (*parts, _join_decisions(open_)) if open_ else tuple(parts)


class Snapshot(NamedTuple):
    """The tokens in a model's context at the time of sampling, each marked as sampled or not."""

    ids: tuple[int, ...]
    sampled: tuple[bool, ...]


def merge_snapshots(snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    """Merge consecutive snapshots of a context if the later one extends the earlier one.

    Source: AgentEvolver's merging of a context's timelines (arXiv 2511.10395).
    """
    result: list[Snapshot] = []
    for ids, sampled in snapshots:
        before = result[-1] if result else Snapshot((), ())
        n = len(before.ids)
        if n and ids[:n] == before.ids:
            both = map(or_, before.sampled, sampled)
            result[-1] = Snapshot(ids, (*both, *sampled[n:]))
        else:
            result.append(Snapshot(ids, sampled))
    return result


def _join_decisions(decisions: Sequence[TokenDecision]) -> Segment:
    """Join decisions into one segment. Each decision must extend the previous decision."""
    prompts = [(_prompt_to_train_on(decision), decision.ids) for decision in decisions]
    (whole,) = merge_snapshots(
        Snapshot(prompt_ids + ids, (False,) * len(prompt_ids) + (True,) * len(ids))
        for prompt_ids, ids in prompts
    )
    logprobs = tuple(value for decision in decisions for value in decision.logprobs)
    stripped = any(decision.trained_prompt_ids is not None for decision in decisions)
    oldest = min(decision.policy_version for decision in decisions)
    temperature = decisions[-1].temperature
    return Segment(whole.ids, whole.sampled, logprobs, temperature, stripped, oldest)


def _prompt_to_train_on(decision: TokenDecision) -> tuple[int, ...]:
    trained = decision.trained_prompt_ids
    return decision.prompt_ids if trained is None else trained


def samples(decisions: Sequence[Decision]) -> tuple[Sample, ...]:
    """Convert decisions to samples for ``logprobs``, joining token decisions into segments."""
    parts: list[Sample] = []
    for decision_type, run in groupby(decisions, key=type):
        if decision_type is TokenDecision:
            parts += segments([d for d in run if isinstance(d, TokenDecision)])
        else:
            parts += [d for d in run if isinstance(d, ChoiceDecision)]
    return tuple(parts)


def n_sampled(sample: Decision | Sample) -> int:
    """Return the number of sampled positions in a sample (1 for a choice)."""
    return 1 if isinstance(sample, ChoiceDecision) else len(sample.logprobs)


def count_sampled(trajectory: Trajectory) -> int:
    """Count the positions that a policy sampled in an episode, counting each choice as one."""
    decisions = (step.decision for step in trajectory.steps)
    return sum(n_sampled(decision) for decision in decisions if decision is not None)


def n_tokens(sample: Sample) -> int:
    """Return the number of tokens that a sample adds to a forward pass (1 for a choice)."""
    return 1 if isinstance(sample, ChoiceDecision) else len(sample.ids)


def recorded_logprobs(sample: Sample) -> tuple[float, ...]:
    """Return the log-probabilities that were recorded when the positions were sampled."""
    return (sample.logprob,) if isinstance(sample, ChoiceDecision) else sample.logprobs
