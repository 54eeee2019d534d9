"""What a model might propose for the toy benchmark."""

from __future__ import annotations

from typing import Any

from coevo_gym.core.errors import BuildError
from coevo_gym.core.evolution import Context, Draft, Proposal
from coevo_gym.core.task import Task
from tests.curricula.episodes import TRAIN
from tests.toy import ToyBenchmark, ToyWorld

CONTEXT = Context(kind="boundary", task=TRAIN[3])


class Drafting(ToyBenchmark):
    """The toy benchmark, with what its drafts go wrong by in their description."""

    def draft(self, proposal: Proposal, context: Context) -> Draft:
        if "refuse" in proposal.description:
            raise BuildError("nobody could want that")
        if "crash" in proposal.description:
            raise ZeroDivisionError("oops \ud800")
        draft = super().draft(proposal, context)
        if "unwritable" in proposal.description:
            return draft.model_copy(update={"world": ToyWorld(buttons=("\ud800",))})
        return draft

    def build(self, draft: Draft) -> Task:
        task = super().build(draft)
        return task.model_copy(update={"instruction": draft.instruction, "name": ""})


def proposal(description: str = "buttons", **fields: Any) -> Proposal:
    task = TRAIN[9]
    known = {
        "description": description,
        "turns": (task.instruction,),
        "actions": task.solution,
        "confidence": 0.9,
    }
    return Proposal(**{**known, **fields})
