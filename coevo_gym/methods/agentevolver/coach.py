"""The coach that adds experiences to the prompts of some rollouts in each group."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from pydantic import BaseModel

from coevo_gym.core.advice import advised
from coevo_gym.core.inquiry import Analyst, Inquiry
from coevo_gym.core.seams import Guidance, Sampling, Ticket
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.spend import NO_USAGE, Usage
from coevo_gym.core.trajectory import Cue
from coevo_gym.methods.agentevolver.experience import MAX_QUESTIONS, Experience
from coevo_gym.methods.agentevolver.pool import ExperiencePool
from coevo_gym.prompts.cue import load_cue

REFINE = "refine"
"""Purpose of model calls that adapt experiences to a task."""

_TOLERANCE = 1e-9
_MARK = "exp:"
_PROMPT, _REFINED = "agentevolver/experiences", "agentevolver/refined"
"""Names of the prompts for unchanged experiences and for a model's advice."""
_REFINE_PROMPT = "agentevolver/refine"
_ADVICE_CHARS = 4_000
"""Maximum number of characters in a model's advice."""
_Question = tuple[str, ...]
"""An instruction and the ids of the experiences that were found for it."""


def places(size: int, share: float) -> tuple[int, ...]:
    """Return the positions of the rollouts that get experiences, evenly spaced in the group.

    Args:
        size: K, number of rollouts in a group.
        share: share of rollouts that get experiences, in [0, 1]; the number is rounded down.

    Example:
        >>> places(8, 0.5), places(7, 0.5)
        ((1, 3, 5, 7), (2, 4, 6))

    Source: AgentEvolver (arXiv 2511.10395), Eq. 15; the order is ours.
    """
    n = math.floor(size * share + _TOLERANCE)
    return tuple(place for place in range(size) if (place + 1) * n // size > place * n // size)


def told_ids(cue_ids: Sequence[str]) -> tuple[str, ...]:
    """Extract the experience ids from a rollout's cue ids.

    Example:
        >>> told_ids(("time", "exp:a1,b2"))
        ('a1', 'b2')
    """
    return advised([id for id in cue_ids if id.startswith(_MARK)])


class Refined(BaseModel):
    """Advice based on experiences that a model selected and rewrote for a task.

    Attributes:
        chosen: numbers of the chosen experiences, from 1, most useful first.
        advice: the experiences' advice, rewritten for the task.
    """

    chosen: list[int]
    advice: str


class ExperienceCoach:
    """A coach that adds relevant experiences to the prompts of some rollouts in each group.

    One cue before the first message contains the experiences; training sequences omit the cue.
    There is no cue if no experience is relevant, or while the pool is being built. The search uses
    only the instruction, so the verifier and the solution cannot influence the cue.

    With an analyst, a model is asked once per task and learner step to choose from the experiences
    that were found and to rewrite them for the task. It sees the instruction and the experiences.
    Without a usable answer, the experiences are unchanged; if the model chooses none, there is no
    cue.

    Args:
        pool: the pool to search.
        group_size: K, number of rollouts in a group.
        share: share of a group's rollouts that get experiences, rounded down.
        k: maximum experiences in a cue.
        least: minimum cosine between an instruction and ``when_to_use``.
        build_steps: number of first learner steps that only build the pool, without cues.
        analyst: returns the model to query; None to use experiences unchanged.
        most: maximum number of model queries per learner step.

    Source: AgentEvolver (arXiv 2511.10395), section 4.2 and Eq. 14 and 15.
    """

    def __init__(
        self,
        pool: ExperiencePool,
        *,
        group_size: int,
        share: float = 0.5,
        k: int = 5,
        least: float = 0.3,
        build_steps: int = 0,
        analyst: Callable[[], Analyst] | None = None,
        most: int = MAX_QUESTIONS,
    ) -> None:
        self._pool, self._k, self._least = pool, k, least
        self._places = frozenset(places(group_size, share))
        self._build_steps = build_steps
        self._analyst, self._most = analyst, most
        self._step = -1
        self._refined: dict[_Question, Guidance] = {}
        self._usage: dict[str, Usage] = {}

    def guide(self, tickets: Sequence[Ticket]) -> list[Guidance]:
        """Return the guidance for each episode to run; see :class:`~coevo_gym.core.seams.Coach`."""
        if self._pool.steps < self._build_steps:
            return [Guidance()] * len(tickets)
        asked = {t.task.instruction for t in tickets if t.index in self._places}
        found = {one: self._pool.retrieve(one, k=self._k, least=self._least) for one in asked}
        told = {one: _as_they_are(experiences) for one, experiences in found.items()}
        if self._analyst is not None:
            told |= self._by_model(found, self._analyst)
        return [
            told[ticket.task.instruction] if ticket.index in self._places else Guidance()
            for ticket in tickets
        ]

    def spent(self) -> Mapping[str, Usage]:
        """Return the cost, by purpose, of the model queries made since the previous call."""
        found, self._usage = self._usage, {}
        return found

    def _by_model(
        self, found: Mapping[str, tuple[Experience, ...]], analyst: Callable[[], Analyst]
    ) -> dict[str, Guidance]:
        """Return the guidance for each instruction. Query the model about new instructions."""
        if self._step != self._pool.steps:
            self._step, self._refined = self._pool.steps, {}
        questions = {one: (one, *(e.id for e in found[one])) for one in sorted(found) if found[one]}
        new = [one for one, question in questions.items() if question not in self._refined]
        new = new[: self._most - len(self._refined)]
        if new:
            asks = analyst()
            with asks.scope(f"{REFINE}-{self._step}") as spent:
                answers = asks.advisor.ask(
                    [_inquiry(one, found[one], asks.sampling) for one in new]
                )
                for purpose, usage in spent().items():
                    self._usage[purpose] = self._usage.get(purpose, NO_USAGE) + usage
            for one, answer in zip(new, answers, strict=True):
                self._refined[questions[one]] = _rewritten(found[one], answer.value)
        known = {one: self._refined.get(question) for one, question in questions.items()}
        return {one: guidance for one, guidance in known.items() if guidance is not None}


_cue = lru_cache(maxsize=None)(load_cue)


def _inquiry(
    instruction: str, experiences: Sequence[Experience], sampling: Sampling
) -> Inquiry[Refined]:
    numbered = [
        {"number": number, **_texts(experience)}
        for number, experience in enumerate(experiences, start=1)
    ]
    return Inquiry(
        prompt=_REFINE_PROMPT,
        schema=Refined,
        inputs={"instruction": instruction, "experiences": numbered},
        purpose=REFINE,
        sampling=sampling,
    )


def _rewritten(experiences: Sequence[Experience], said: Refined | None) -> Guidance:
    """Create guidance from a model's answer. If it is unusable, keep all experiences unchanged."""
    if said is None:
        return _as_they_are(experiences)
    chosen = [experiences[n - 1] for n in dict.fromkeys(said.chosen) if 0 < n <= len(experiences)]
    advice = clean_text(said.advice.strip(), _ADVICE_CHARS)
    if said.chosen and not (chosen and advice):
        return _as_they_are(experiences)
    return _told(chosen, _cue(_REFINED).write({"advice": advice})) if chosen else Guidance()


def _as_they_are(experiences: Sequence[Experience]) -> Guidance:
    """Return guidance that quotes the experiences, or empty guidance if there are none."""
    texts = [_texts(experience) for experience in experiences]
    return _told(experiences, _cue(_PROMPT).write({"experiences": texts}))


def _told(experiences: Sequence[Experience], text: str) -> Guidance:
    if not experiences:
        return Guidance()
    id = _MARK + ",".join(experience.id for experience in experiences)
    return Guidance(cues=(Cue(text, "first", id, strip=True),))


def _texts(experience: Experience) -> dict[str, str]:
    return {"when_to_use": experience.when_to_use, "content": experience.content}
