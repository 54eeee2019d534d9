"""Abstraction: a model makes tasks out of what was done on walks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, Field

from coevo_gym.core.evolution import Context, Exchange, Proposal, Walk
from coevo_gym.core.inquiry import Advisor, Inquiry
from coevo_gym.core.seams import Sampling
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.task import FrozenDict
from coevo_gym.curricula.explore.aim import is_open
from coevo_gym.curricula.explore.summarise import numbered
from coevo_gym.curricula.growth.evidence import EVIDENCE_CHARS, evidence_cut, size
from coevo_gym.prompts.inquiry import load_inquiry

PURPOSE = "abstract"
MAX_PROPOSALS = 8
"""Most proposals that are taken from one answer."""
MAX_ACTIONS = 64
MAX_TURNS = 16
MAX_TEXT = 4_000
MAX_LEFT_OUT = 1_000
"""Most characters of an action that is listed without what it led to."""


class Idea(BaseModel):
    """A task, as a model says it.

    Attributes:
        walk: number of the walk that shows it, from 1.
        why: why somebody would want it. It leads the model to better requests, and is not kept.
    """

    walk: int = 1
    description: str
    why: str = ""
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
    """Has walks turned into proposals.

    A question shows walks from one task, as many as have :data:`EVIDENCE_CHARS` characters
    together; of a longer walk what was done is listed, and what came of the steps in its middle is
    left out. The first questions about all tasks are one batch, then the second ones, which say
    what was proposed before, and so on.

    Args:
        advisor: who is asked.
        prompt: name of the prompt file.
        sampling: how answers are drawn.
        tasks: what makes a task valid in the env, in words; "" if nobody says.
        told: more inputs, for a prompt file that declares them; names of its own inputs are taken.
    """

    def __init__(
        self,
        advisor: Advisor,
        prompt: str,
        sampling: Sampling,
        *,
        tasks: str = "",
        told: Mapping[str, Any] = FrozenDict(),
    ) -> None:
        self.advisor, self.prompt, self.sampling = advisor, prompt, sampling
        self.tasks = tasks
        self._told = load_inquiry(prompt).declared(told) if told else {}

    def __call__(self, walks: Sequence[tuple[Context, Walk]]) -> list[Abstraction]:
        """Proposals from walks, each given with the context that it began in.

        Walks without an exchange are left out.
        """
        of_tasks = [[*_batches(places, walks)] for places in _by_task(walks)]
        found: list[list[Abstraction]] = [[] for _ in of_tasks]
        for turn in range(max(map(len, of_tasks), default=0)):
            going = [task for task, batches in enumerate(of_tasks) if turn < len(batches)]
            asked = [
                self._inquiry([walks[place] for place in of_tasks[task][turn]], found[task])
                for task in going
            ]
            for task, answer in zip(going, self.advisor.ask(asked), strict=True):
                batch = of_tasks[task][turn]
                proposals = () if answer.value is None else tuple(_proposals(answer.value, batch))
                found[task].append(Abstraction(batch, proposals, answer.problem))
        return [each for of_task in found for each in of_task]

    def _inquiry(
        self, walks: Sequence[tuple[Context, Walk]], before: Sequence[Abstraction]
    ) -> Inquiry[Ideas]:
        context, _ = walks[0]
        proposed = (" ".join(p.turns) for each in before for _, p in each.proposals)

        def inputs(cap: int) -> Mapping[str, Any]:
            share = min(1.0, cap / max(1, sum(_size(walk) for _, walk in walks)))
            return {
                **self._told,
                "instruction": "" if is_open(context) else context.task.instruction,
                "known": known,
                "tasks": self.tasks,
                "walks": [
                    {
                        "number": number,
                        "opening": walk.opening,
                        "steps": _steps(walk.exchanges, int(_size(walk) * share)),
                    }
                    for number, (_, walk) in enumerate(walks, start=1)
                ],
            }

        known = [clean_text(text, MAX_TEXT) for text in (*context.known, *proposed)]
        return Inquiry(
            prompt=self.prompt,
            schema=Ideas,
            inputs=inputs(EVIDENCE_CHARS),
            purpose=PURPOSE,
            sampling=self.sampling,
            shorten=lambda: inputs(EVIDENCE_CHARS // 2),
        )


def _by_task(walks: Sequence[tuple[Context, Walk]]) -> list[list[int]]:
    """Places of walks with an exchange, those from one source task together."""
    of_task: dict[tuple[str, bool], list[int]] = {}
    for place, (context, walk) in enumerate(walks):
        if walk.exchanges:
            of_task.setdefault((context.task.id, is_open(context)), []).append(place)
    return list(of_task.values())


def _batches(
    places: Sequence[int], walks: Sequence[tuple[Context, Walk]]
) -> Iterator[tuple[int, ...]]:
    """Places of walks that fit into one question."""
    batch: list[int] = []
    for place in places:
        if batch and sum(_size(walks[p][1]) for p in (*batch, place)) > EVIDENCE_CHARS:
            yield tuple(batch)
            batch = []
        batch.append(place)
    yield tuple(batch)


def _size(walk: Walk) -> int:
    """Characters of a walk."""
    return len(walk.opening) + sum(map(size, walk.exchanges))


def _steps(exchanges: Sequence[Exchange], cap: int) -> list[dict[str, Any]]:
    """A walk as a prompt shows it: all actions, and what came of them where there is room."""
    full = {*evidence_cut([size(exchange) for exchange in exchanges], cap)}
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
