"""Abstraction: a model makes tasks out of what was done on walks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, Field

from coevo_gym.core.evolution import Context, Exchange, Proposal, Walk
from coevo_gym.core.inquiry import Advisor, Inquiry
from coevo_gym.core.seams import Sampling
from coevo_gym.core.spaces import clean_text
from coevo_gym.curricula.explore.aim import is_open
from coevo_gym.curricula.explore.summarise import numbered
from coevo_gym.curricula.growth.evidence import EVIDENCE_CHARS, evidence_cut, size

PURPOSE = "abstract"
MAX_EXCHANGES = 12
"""Most exchanges whose observations one question shows."""
MAX_PROPOSALS = 8
"""Most proposals that are taken from one answer."""
MAX_ACTIONS = 64
MAX_TURNS = 16
MAX_TEXT = 4_000
MAX_LEFT_OUT = 1_000
"""Most characters of an action that is listed without what it led to."""


class Idea(BaseModel):
    """A task, as a model says it."""

    walk: int = 1
    description: str
    turns: tuple[str, ...] = Field(min_length=1)
    actions: tuple[str, ...]
    done_when: str = ""
    confidence: float = Field(ge=0, le=1, allow_inf_nan=False)

    def proposal(self) -> Proposal:
        """The same as data that can be stored."""
        return Proposal(
            description=clean_text(self.description, MAX_TEXT),
            turns=tuple(clean_text(turn, MAX_TEXT) for turn in self.turns[:MAX_TURNS]),
            actions=tuple(clean_text(action, MAX_TEXT) for action in self.actions[:MAX_ACTIONS]),
            confidence=self.confidence,
            done_when=clean_text(self.done_when, MAX_TEXT),
        )


class Ideas(BaseModel):
    """What a model says could be asked for."""

    tasks: tuple[Idea, ...]


class Abstraction(NamedTuple):
    """What became of some walks.

    Attributes:
        walks: their places among those that were given.
        proposals: what a model proposed, each with the place of its walk.
        problem: why no model proposed anything, in the advisor's words; "" if one was heard.
    """

    walks: tuple[int, ...]
    proposals: tuple[tuple[int, Proposal], ...] = ()
    problem: str = ""


class Abstract:
    """Has walks turned into proposals, those from all source tasks in one batch.

    A question shows walks from one task, of :data:`MAX_EXCHANGES` steps in all; of a longer walk
    what was done is listed, and what came of the steps in its middle is left out.

    Args:
        advisor: who is asked.
        prompt: name of the prompt file.
        sampling: how answers are drawn.
    """

    def __init__(self, advisor: Advisor, prompt: str, sampling: Sampling) -> None:
        self.advisor, self.prompt, self.sampling = advisor, prompt, sampling

    def __call__(self, walks: Sequence[tuple[Context, Walk]]) -> list[Abstraction]:
        """Proposals from walks, each given with the context that it began in.

        Walks without an exchange are left out.
        """
        batches = list(_batches(walks))
        asked = [self._inquiry([walks[place] for place in batch]) for batch in batches]
        answers = self.advisor.ask(asked) if asked else []
        return [
            Abstraction(batch, problem=answer.problem)
            if answer.value is None
            else Abstraction(batch, tuple(_proposals(answer.value, batch)))
            for batch, answer in zip(batches, answers, strict=True)
        ]

    def _inquiry(self, walks: Sequence[tuple[Context, Walk]]) -> Inquiry[Ideas]:
        context, _ = walks[0]

        def inputs(cap: int) -> Mapping[str, Any]:
            return {
                "instruction": "" if is_open(context) else context.task.instruction,
                "known": [clean_text(text, MAX_TEXT) for text in context.known],
                "walks": [
                    {"number": number, "steps": _steps(walk.exchanges, cap // len(walks))}
                    for number, (_, walk) in enumerate(walks, start=1)
                ],
            }

        return Inquiry(
            prompt=self.prompt,
            schema=Ideas,
            inputs=inputs(EVIDENCE_CHARS),
            purpose=PURPOSE,
            sampling=self.sampling,
            shorten=lambda: inputs(EVIDENCE_CHARS // 2),
        )


def _batches(walks: Sequence[tuple[Context, Walk]]) -> Iterator[tuple[int, ...]]:
    """Places of walks that fit into one question, of one source task after the other."""
    of_task: dict[tuple[str, bool], list[int]] = {}
    for place, (context, walk) in enumerate(walks):
        if walk.exchanges:
            of_task.setdefault((context.task.id, is_open(context)), []).append(place)
    for places in of_task.values():
        batch: list[int] = []
        for place in places:
            if batch and sum(len(walks[p][1].exchanges) for p in (*batch, place)) > MAX_EXCHANGES:
                yield tuple(batch)
                batch = []
            batch.append(place)
        yield tuple(batch)


def _steps(exchanges: Sequence[Exchange], cap: int) -> list[dict[str, Any]]:
    """A walk as a prompt shows it: all actions, and what came of them where there is room."""
    sizes = [size(exchange) for exchange in exchanges]
    kept = evidence_cut(sizes, cap)
    full = {*kept[:1], *kept[1:][1 - MAX_EXCHANGES :]}
    return [
        {**numbered(place + 1, exchange), "left_out": False}
        if place in full
        else {
            **numbered(place + 1, exchange),
            "action": clean_text(exchange.action, MAX_LEFT_OUT),
            "observation": "",
            "left_out": True,
        }
        for place, exchange in enumerate(exchanges)
    ]


def _proposals(answer: Ideas, batch: Sequence[int]) -> Iterator[tuple[int, Proposal]]:
    for idea in answer.tasks[:MAX_PROPOSALS]:
        walk = idea.walk if 1 <= idea.walk <= len(batch) else 1
        yield batch[walk - 1], idea.proposal()
