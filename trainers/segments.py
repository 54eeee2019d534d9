"""From a trajectory's decisions to what is trained on in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from coevo_gym.core.trajectory import ChoiceDecision, Decision, Sample, Segment, TokenDecision


def segments(decisions: Sequence[TokenDecision]) -> tuple[Segment, ...]:
    """Lay consecutive decisions into one stretch of tokens where each prompt goes on from there.

    A prompt that does not begin with all tokens so far (a context manager has changed it, or
    somebody has tokenised it anew), or another temperature, begins the next segment. Each sampled
    token keeps exactly the context it was sampled in.

    Args:
        decisions: those of one trajectory, in order.

    Returns:
        The segments. Their sampled positions, one segment after the other, are the decisions' ids
        in order: the first ``len(decisions[0].ids)`` belong to the first decision, and so on.

    Raises:
        ValueError: if a decision has no prompt; its first token would have no context.
    """
    found: list[Segment] = []
    open_: list[TokenDecision] = []
    so_far: tuple[int, ...] = ()
    for decision in decisions:
        if not decision.ids:
            continue
        if not decision.prompt_ids:
            raise ValueError("A decision without prompt ids cannot be trained on: no context.")
        goes_on = (
            open_
            and decision.temperature == open_[0].temperature
            and decision.prompt_ids[: len(so_far)] == so_far
        )
        if open_ and not goes_on:
            found.append(_joined(open_))
            open_ = []
        open_.append(decision)
        so_far = decision.prompt_ids + decision.ids
    return (*found, _joined(open_)) if open_ else tuple(found)


def _joined(decisions: Sequence[TokenDecision]) -> Segment:
    """One segment of decisions each of which goes on from the one before."""
    last = decisions[-1]
    sampled: list[bool] = []
    for decision in decisions:
        sampled += [False] * (len(decision.prompt_ids) - len(sampled)) + [True] * len(decision.ids)
    logprobs = tuple(value for decision in decisions for value in decision.logprobs)
    return Segment(last.prompt_ids + last.ids, tuple(sampled), logprobs, last.temperature)


def samples(decisions: Sequence[Decision]) -> tuple[Sample, ...]:
    """What a learner gives to ``logprobs``: choices as they are, token decisions as segments."""
    found: list[Sample] = []
    for decision_type, run in groupby(decisions, key=type):
        if decision_type is TokenDecision:
            found += segments([d for d in run if isinstance(d, TokenDecision)])
        else:
            found += [d for d in run if isinstance(d, ChoiceDecision)]
    return tuple(found)


def n_sampled(sample: Decision | Sample) -> int:
    """Positions that a policy sampled; a choice is one."""
    return 1 if isinstance(sample, ChoiceDecision) else len(sample.logprobs)


def n_tokens(sample: Sample) -> int:
    """Tokens of a forward pass; a choice counts as one."""
    return 1 if isinstance(sample, ChoiceDecision) else len(sample.ids)


def recorded_logprobs(sample: Sample) -> tuple[float, ...]:
    """Log-probabilities of the sampled positions when they were sampled."""
    return (sample.logprob,) if isinstance(sample, ChoiceDecision) else sample.logprobs
