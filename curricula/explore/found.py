"""What explorers bring, and which of it is kept where they were looking for something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from coevo_gym.core.benchmark import Benchmark, proposable
from coevo_gym.core.errors import BuildError, TaskError
from coevo_gym.core.evolution import Context, Draft, Proposal
from coevo_gym.core.task import Split
from coevo_gym.envs.tags import tags_of

Found: TypeAlias = Proposal | Draft | str
"""What an explorer brings: what a model proposes, a draft, or the raw JSON text of one."""


def fittest(found: Sequence[Found], context: Context, benchmark: Benchmark) -> Sequence[Found]:
    """Of what was found on the way to a target the one that fits it best; all without a target.

    That is the one with most of the target's tags, of those the one with fewest others, of those
    the one that its model is surest of, or the first. A proposal is judged by the draft that it
    stands for; one that stands for none, what lies in no training scenario, and text that nobody
    has read yet, fit worst.
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
