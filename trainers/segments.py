"""From a trajectory's decisions to what is trained on in one forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import or_
from typing import NamedTuple

from coevo_gym.core.trajectory import ChoiceDecision, Decision, Sample, Segment, TokenDecision


def segments(decisions: Sequence[TokenDecision]) -> tuple[Segment, ...]:
    """Lay consecutive decisions into one stretch of tokens where each prompt goes on from there.

    A prompt that does not begin with all tokens so far (a context manager has changed it, or
    somebody has tokenised it anew), or another temperature, begins the next segment. Each sampled
    token keeps exactly the context it was sampled in, but for cues that are stripped: of a decision
    with ``trained_prompt_ids`` those are laid out.

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
        prompt_ids = _trained_prompt(decision)
        if not prompt_ids:
            raise ValueError("A decision without prompt ids cannot be trained on: no context.")
        goes_on = (
            open_
            and decision.temperature == open_[0].temperature
            and prompt_ids[: len(so_far)] == so_far
        )
        if open_ and not goes_on:
            found.append(_joined(open_))
            open_ = []
        open_.append(decision)
        so_far = prompt_ids + decision.ids
    return (*found, _joined(open_)) if open_ else tuple(found)


class Snapshot(NamedTuple):
    """A context as it stood when something was sampled.

    Attributes:
        ids: its tokens, the sampled ones included.
        sampled: which of them were sampled; as long as ``ids``.
    """

    ids: tuple[int, ...]
    sampled: tuple[bool, ...]


def merged(snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    """Drop each snapshot that the next one goes on from; what it sampled stays marked.

    Args:
        snapshots: in order of time.

    Returns:
        Those that are left, in order.

    Source: the merging of a context's timelines in AgentEvolver (arXiv 2511.10395).
    """
    kept: list[Snapshot] = []
    for ids, sampled in snapshots:
        before = kept[-1] if kept else Snapshot((), ())
        n = len(before.ids)
        if n and ids[:n] == before.ids:
            both = map(or_, before.sampled, sampled)
            kept[-1] = Snapshot(ids, (*both, *sampled[n:]))
        else:
            kept.append(Snapshot(ids, sampled))
    return kept


def _joined(decisions: Sequence[TokenDecision]) -> Segment:
    """One segment of decisions each of which goes on from the one before."""
    prompts = [(_trained_prompt(decision), decision.ids) for decision in decisions]
    (whole,) = merged(
        Snapshot(prompt_ids + ids, (False,) * len(prompt_ids) + (True,) * len(ids))
        for prompt_ids, ids in prompts
    )
    logprobs = tuple(value for decision in decisions for value in decision.logprobs)
    stripped = any(decision.trained_prompt_ids is not None for decision in decisions)
    oldest = min(decision.policy_version for decision in decisions)
    temperature = decisions[-1].temperature
    return Segment(whole.ids, whole.sampled, logprobs, temperature, stripped, oldest)


def _trained_prompt(decision: TokenDecision) -> tuple[int, ...]:
    trained = decision.trained_prompt_ids
    return decision.prompt_ids if trained is None else trained


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
