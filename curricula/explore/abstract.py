"""Abstraction: a language model turns exploration walks into task proposals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, Field

from coevo_gym.core.evolution import Context, Exchange, Proposal, Walk
from coevo_gym.core.inquiry import Advisor, Inquiry
from coevo_gym.core.seams import Sampling
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.task import FrozenDict, Task
from coevo_gym.curricula.explore.guide import hides_request
from coevo_gym.curricula.explore.summarise import step_input
from coevo_gym.curricula.growth.evidence import EVIDENCE_CHARS, choose_exchanges, exchange_size
from coevo_gym.prompts.inquiry import load_inquiry

PURPOSE = "abstract"
MAX_PROPOSALS = 8
"""Maximum number of proposals used from one answer."""
MAX_ACTIONS = 64
MAX_TURNS = 16
MAX_TEXT = 4_000
MAX_LEFT_OUT = 1_000
"""Maximum length, in characters, of an action listed without its observation."""


class Idea(BaseModel):
    """A task idea, parsed from a model's JSON answer.

    Attributes:
        walk: number of the walk that demonstrates the task, from 1.
        why: a user's reason to want the task. It improves the requests and is not stored.
    """

    walk: int = 1
    description: str
    why: str = ""
    turns: tuple[str, ...] = Field(min_length=1)
    actions: tuple[str, ...]
    done_when: str = ""
    confidence: float = Field(ge=0, le=1, allow_inf_nan=False)

    def to_proposal(self) -> Proposal:
        """Return the task idea as a proposal that can be stored."""
        return Proposal(
            description=clean_text(self.description, MAX_TEXT),
            turns=tuple(clean_text(turn, MAX_TEXT) for turn in self.turns[:MAX_TURNS]),
            actions=tuple(clean_text(action, MAX_TEXT) for action in self.actions[:MAX_ACTIONS]),
            confidence=self.confidence,
            done_when=clean_text(self.done_when, MAX_TEXT),
        )


class Ideas(BaseModel):
    """The task ideas in a model's answer."""

    tasks: tuple[Idea, ...]


class Abstraction(NamedTuple):
    """The task proposals made from a batch of exploration walks.

    Attributes:
        walks: indices of the walks in the input.
        proposals: the model's proposals, each with the index of its walk.
        problem: reason why the model did not answer, from the advisor; "" if it answered.
    """

    walks: tuple[int, ...]
    proposals: tuple[tuple[int, Proposal], ...] = ()
    problem: str = ""


class Abstract:
    """An abstraction step that asks a model to turn exploration walks into task proposals.

    One question shows walks from a single task, up to :data:`EVIDENCE_CHARS` characters in total.
    For a longer walk, all actions are listed, but the observations of its middle steps are omitted.
    The first questions about all tasks form one batch. The second questions, which list the earlier
    proposals, form the next batch, and so on.

    It takes the same arguments as :class:`~coevo_gym.curricula.explore.summarise.Summarise`, except
    for ``restrictions``: a function that returns further rules on the tasks that may be proposed
    after some walks, see :func:`~coevo_gym.core.benchmark.restrictions_of`.
    """

    def __init__(
        self,
        advisor: Advisor,
        prompt: str,
        sampling: Sampling,
        *,
        tasks: str = "",
        restrictions: Callable[[Task, Sequence[Walk]], Sequence[str]] = lambda task, walks: (),
        inputs: Mapping[str, Any] = FrozenDict(),
    ) -> None:
        self.advisor, self.prompt, self.sampling = advisor, prompt, sampling
        self.tasks, self._restrictions = tasks, restrictions
        self._told = load_inquiry(prompt).declared_inputs(inputs) if inputs else {}

    def __call__(self, walks: Sequence[tuple[Context, Walk]]) -> list[Abstraction]:
        """Return the task proposals made from walks and their contexts.

        Walks without any action are skipped.
        """
        of_tasks = [[*_batches(places, walks)] for places in _group_by_task(walks)]
        abstractions: list[list[Abstraction]] = [[] for _ in of_tasks]
        for turn in range(max(map(len, of_tasks), default=0)):
            going = [task for task, batches in enumerate(of_tasks) if turn < len(batches)]
            asked = [
                self._inquiry([walks[place] for place in of_tasks[task][turn]], abstractions[task])
                for task in going
            ]
            for task, answer in zip(going, self.advisor.ask(asked), strict=True):
                batch = of_tasks[task][turn]
                proposals = () if answer.value is None else tuple(_proposals(answer.value, batch))
                abstractions[task].append(Abstraction(batch, proposals, answer.problem))
        return [each for of_task in abstractions for each in of_task]

    def _inquiry(
        self, walks: Sequence[tuple[Context, Walk]], before: Sequence[Abstraction]
    ) -> Inquiry[Ideas]:
        context, _ = walks[0]
        proposed = (" ".join(p.turns) for each in before for _, p in each.proposals)

        def inputs(cap: int) -> Mapping[str, Any]:
            share = min(1.0, cap / max(1, sum(_size(walk) for _, walk in walks)))
            return {
                **self._told,
                "instruction": "" if hides_request(context) else context.task.instruction,
                "known": known,
                "tasks": tasks,
                "walks": [
                    {
                        "number": number,
                        "opening": walk.opening,
                        "steps": _step_inputs(walk.exchanges, int(_size(walk) * share)),
                    }
                    for number, (_, walk) in enumerate(walks, start=1)
                ],
            }

        known = [clean_text(text, MAX_TEXT) for text in (*context.known, *proposed)]
        rules = self._restrictions(context.task, [walk for _, walk in walks])
        tasks = "\n".join([*filter(None, [self.tasks]), *(f"- {rule}" for rule in rules)])
        return Inquiry(
            prompt=self.prompt,
            schema=Ideas,
            inputs=inputs(EVIDENCE_CHARS),
            purpose=PURPOSE,
            sampling=self.sampling,
            shorten=lambda: inputs(EVIDENCE_CHARS // 2),
        )


def _group_by_task(walks: Sequence[tuple[Context, Walk]]) -> list[list[int]]:
    """Group the indices of walks with at least one action by their starting task."""
    of_task: dict[tuple[str, bool], list[int]] = {}
    for place, (context, walk) in enumerate(walks):
        if walk.exchanges:
            of_task.setdefault((context.task.id, hides_request(context)), []).append(place)
    return list(of_task.values())


def _batches(
    places: Sequence[int], walks: Sequence[tuple[Context, Walk]]
) -> Iterator[tuple[int, ...]]:
    """Yield batches of walk indices such that each batch fits into one prompt."""
    batch: list[int] = []
    for place in places:
        if batch and sum(_size(walks[p][1]) for p in (*batch, place)) > EVIDENCE_CHARS:
            yield tuple(batch)
            batch = []
        batch.append(place)
    yield tuple(batch)


def _size(walk: Walk) -> int:
    return len(walk.opening) + sum(map(exchange_size, walk.exchanges))


def _step_inputs(exchanges: Sequence[Exchange], cap: int) -> list[dict[str, Any]]:
    """Return a walk's steps for a prompt: all actions, and as many observations as fit."""
    full = {*choose_exchanges([exchange_size(exchange) for exchange in exchanges], cap)}
    steps = []
    for place, exchange in enumerate(exchanges):
        step = {**step_input(place + 1, exchange), "left_out": place not in full}
        if place not in full:
            step |= {"action": clean_text(exchange.action, MAX_LEFT_OUT), "observation": ""}
        steps.append(step)
    return steps


def _proposals(answer: Ideas, batch: Sequence[int]) -> Iterator[tuple[int, Proposal]]:
    for idea in answer.tasks[:MAX_PROPOSALS]:
        walk = idea.walk if 1 <= idea.walk <= len(batch) else 1
        yield batch[walk - 1], idea.to_proposal()
