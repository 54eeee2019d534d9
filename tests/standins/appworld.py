"""A stand-in for a model on AppWorld: it asks again for what its code has changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from numpy.random import Generator

from coevo_gym.core.evolution import Exchange, Proposal
from coevo_gym.core.trajectory import View
from coevo_gym.envs.appworld.choices import choices

_LOOKS = ("# sign in", "# list")
_ENDS = ("# the task is done", "# the answer is")


def busy(view: View, rng: Generator) -> str:
    """Any choice, but one that does something where there is one, and none that ends it."""
    actions = [choice for choice in choices(view) if not choice.startswith(_ENDS)]
    acts = [choice for choice in actions if not choice.startswith(_LOOKS)]
    actions = acts if acts and rng.random() < 0.5 else actions
    return actions[int(rng.integers(len(actions)))]


def propose(walk: Sequence[Exchange]) -> Iterator[Proposal]:
    """A wish for the first thing that was done: its comment in words, with all that led there."""
    worked = [e.action for e in walk if not e.error_kind and not e.action.startswith(_ENDS)]
    for number, action in enumerate(worked, start=1):
        if not action.startswith(_LOOKS):
            instruction = f"Please {action.partition(chr(10))[0].removeprefix('# ')}."
            yield Proposal(
                description=instruction,
                turns=(instruction,),
                actions=tuple(worked[:number]),
                confidence=1.0,
            )
            return
