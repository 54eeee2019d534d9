"""The results of explorers, and the choice of the best result for a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from coevo_gym.core.benchmark import Benchmark, proposable
from coevo_gym.core.errors import BuildError, TaskError
from coevo_gym.core.evolution import Context, Draft, Proposal
from coevo_gym.core.task import Split
from coevo_gym.envs.tags import tags_of

Found: TypeAlias = Proposal | Draft | str
"""A result of an explorer: a model's proposal, a draft, or the raw JSON text of a draft."""


def fittest(found: Sequence[Found], context: Context, benchmark: Benchmark) -> Sequence[Found]:
    """Return the single result that fits the context's target best; without a target, return all.

    The best result has the most tags of the target; ties are broken by the fewest other tags, then
    by the model's confidence, then by order. A proposal is judged by the draft made from it.
    Proposals that cannot be drafted, drafts outside the training scenarios, and unparsed text rank
    last.
    """
    if not context.target or len(found) < 2:
        return found
    wanted = {*context.target}

    def misfit(one: Found) -> tuple[float, ...]:
        tags = _tags(one, context, benchmark)
        sure = one.confidence if isinstance(one, Proposal) else 0.0
        return not tags, -len(wanted & tags), len(tags - wanted), -sure

    return [min(found, key=misfit)]


def _tags(one: Found, context: Context, benchmark: Benchmark) -> set[str]:
    try:
        draft = proposable(benchmark).draft(one, context) if isinstance(one, Proposal) else one
        if isinstance(draft, str) or benchmark.split_of(draft.scenario) is not Split.TRAIN:
            return set()
        return {*tags_of(draft)}
    except (BuildError, TaskError, UnicodeEncodeError):
        return set()
