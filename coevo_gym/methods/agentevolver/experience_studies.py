"""Studies that write experiences from rollouts, by rule or by a model."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, compress, groupby, islice, zip_longest
from typing import Any

from pydantic import BaseModel

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.inquiry import Analyst, Inquiry
from coevo_gym.core.notes import Findings, Note
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.task import FrozenDict, Task
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.curricula.explore.summarise import retraced
from coevo_gym.methods.agentevolver.credit import GOOD
from coevo_gym.methods.agentevolver.experience import (
    EXPERIENCE,
    MAX_QUESTIONS,
    OFFERED,
    REFUSED,
    Experience,
    Source,
    experience_note,
)
from coevo_gym.methods.agentevolver.replays import MAX_REPLAYS, affordable, judged, most_replays
from coevo_gym.prompts.template import FOLDER

_FAILED = "!"
"""The symbol of a step without effect."""


class RuleExperiences:
    """A study that notes, for each solved task, the kinds of the steps that were needed.

    The study replays the first success of each group without single steps, as for attribution. The
    symbols of the good steps form the advice; the instruction, without words that have a digit,
    says when the advice applies. The rule is coarse by intent: it is a control for advice that a
    model writes, and lets the user try the other parts without a model.

    Args:
        benchmark: replays actions, and names what a step did.
        due: tells before each step whether experiences are made in it.
        max_replays: maximum replays per learner's step; the longest successes are skipped.
    """

    kind = EXPERIENCE

    def __init__(
        self, benchmark: Benchmark, due: Callable[[], bool], *, max_replays: int = MAX_REPLAYS
    ) -> None:
        self._benchmark, self._due, self._max_replays = benchmark, due, max_replays

    def examine(self, groups: Sequence[Group]) -> Findings:
        """Replay the first success of each group; see :class:`~coevo_gym.core.seams.Study`."""
        if not self._due():
            return Findings()
        solved = [
            (group, index, trajectory)
            for group in groups
            for index, trajectory in islice(_successes(group), 1)
        ]
        costs = [most_replays(trajectory) for *_, trajectory in solved]
        notes: list[Note] = []
        env_steps = 0
        for group, index, trajectory in compress(solved, affordable(costs, self._max_replays)):
            found = judged(self._benchmark, group.task, trajectory)
            env_steps += found.env_steps
            needed = [label == GOOD for label in found.labels]
            if made := rule_experience(self._benchmark, group.task, trajectory, needed):
                notes.append(experience_note(self._benchmark, group, index, made, "rule"))
        return Findings(tuple(notes), env_steps=env_steps)


def rule_experience(
    benchmark: Benchmark, task: Task, trajectory: Trajectory, needed: Sequence[bool]
) -> Experience | None:
    """Return the experience from a success; None if its steps have no symbols.

    Args:
        benchmark: the benchmark, which names the effects of steps.
        task: the task.
        trajectory: the success.
        needed: (T,) True for each step that was needed.
    """
    symbols = [symbol for symbol, _ in groupby(_symbols(benchmark, trajectory, needed))]
    when = " ".join(re.sub(r"\S*\d\S*", "", task.instruction).split())
    if not symbols or not when:
        return None
    template = _templates().get(benchmark.name, _templates()["any"])
    return Experience(
        when_to_use=when,
        content=template.format(steps=", ".join(symbols)),
        task_id=task.id,
        source="rule",
    )


def _successes(group: Group) -> Iterator[tuple[int, Trajectory]]:
    return ((index, t) for index, t in enumerate(group.trajectories) if t.success)


def _symbols(benchmark: Benchmark, trajectory: Trajectory, needed: Sequence[bool]) -> Iterator[str]:
    """Yield the symbols of the needed steps, without places and tasks."""
    for step, counts in zip(trajectory.steps, needed, strict=True):
        if counts:
            alone = replace(step, observation="", shown="", extras=FrozenDict())
            yield from (s for s in benchmark.symbol(alone).split() if s != _FAILED)


@lru_cache(maxsize=1)
def _templates() -> Mapping[str, str]:
    return tomllib.loads((FOLDER / "agentevolver" / "rules.toml").read_text(encoding="utf-8"))


PROMPT, CHECK = "agentevolver/experience", "agentevolver/check"
"""Names of the prompts that ask for experiences, and for a verdict on them."""
MAX_ATTEMPTS, MAX_LESSONS = 8, 3
"""Maximum rollouts in a question, and maximum experiences from its answer."""
UNCONFIRMED = "the model has not confirmed it"
"""The reason why a note refuses an experience that the check does not confirm."""

_STEP_CHARS = 2_000
"""Maximum characters of an action, and of an observation."""
_CHARS = 60_000
"""Maximum characters of all steps in a question, shared equally by its rollouts."""
_MOST_CHARS = 1_000
"""Maximum characters to store of each text of an experience."""
_ORDER: tuple[Source, ...] = ("pair", "success", "failure")


class Lessons(BaseModel):
    """The experiences that a model drew from some rollouts.

    Attributes:
        lessons: objects with ``when``, the tasks that the experience is for, and ``advice``.
    """

    lessons: list[Any]


class Confirmed(BaseModel):
    """A model's verdict on experiences.

    Attributes:
        confirmed: the numbers of the experiences that it confirms, from 1.
    """

    confirmed: list[int]


@dataclass(frozen=True)
class EpisodeBatch:
    """The rollouts of one question.

    Attributes:
        group: their group.
        indices: their positions in the group.
    """

    group: Group
    indices: tuple[int, ...]

    @property
    def rollouts(self) -> list[Trajectory]:
        """Return the rollouts in the order in which they are shown."""
        return [self.group.trajectories[index] for index in self.indices]

    @property
    def source(self) -> Source:
        """Return the origin of experiences from these rollouts."""
        outcomes = {rollout.success for rollout in self.rollouts}
        return "pair" if len(outcomes) == 2 else "success" if True in outcomes else "failure"


def batches(group: Group, most: int = MAX_ATTEMPTS) -> list[EpisodeBatch]:
    """Return the rollouts of a group in batches for questions; lost ones are skipped.

    Pairs of a success and a failure come first, then the remaining successes or failures.

    Args:
        group: the group.
        most: maximum rollouts in a batch, an even number, so that no pair is torn.
    """
    kept = [(index, t) for index, t in enumerate(group.trajectories) if not t.end_reason.lost]
    successes = [index for index, trajectory in kept if trajectory.success]
    failures = [index for index, trajectory in kept if not trajectory.success]
    mixed = chain.from_iterable(zip_longest(successes, failures))
    order = [index for index in mixed if index is not None]
    return [
        EpisodeBatch(group, tuple(order[first : first + most]))
        for first in range(0, len(order), most)
    ]


class ModelExperiences:
    """A study in which a model reads the rollouts of each group and writes experiences.

    A question shows at most 8 rollouts of one task; its answer may hold up to 3 experiences. An
    experience that gives its task away is refused, as one by rule is
    (:func:`~coevo_gym.methods.agentevolver.experience.leak`). With ``check``, a second question
    for each batch asks for a verdict, and experiences that it does not confirm are refused, too.

    The model sees the task, the steps, and if rollouts succeeded, but neither goal, solution nor
    grader's report.

    Args:
        benchmark: knows the answers, for the check for leaks.
        due: tells before each step whether experiences are made in it.
        analyst: returns the model that is asked.
        check: also ask for a verdict on experiences.
        most: maximum batches per learner's step to ask about: those with both outcomes first, then
            those with successes.

    Source: AgentEvolver (arXiv 2511.10395), section 4.2; the check for leaks is ours.
    """

    kind = EXPERIENCE

    def __init__(
        self,
        benchmark: Benchmark,
        due: Callable[[], bool],
        analyst: Callable[[], Analyst],
        *,
        check: bool = False,
        most: int = MAX_QUESTIONS,
    ) -> None:
        self._benchmark, self._due, self._analyst = benchmark, due, analyst
        self._check, self._most = check, most

    def examine(self, groups: Sequence[Group]) -> Findings:
        """Ask for experiences from the groups; see :class:`~coevo_gym.core.seams.Study`."""
        if not self._due():
            return Findings()
        found = [batch for group in groups for batch in batches(group)]
        found = sorted(found, key=lambda batch: _ORDER.index(batch.source))[: self._most]
        if not found:
            return Findings()
        analyst = self._analyst()
        with analyst.studying(self.kind, groups) as spent:
            answers = analyst.advisor.ask([_asks_for_lessons(each, analyst) for each in found])
            made = [
                self._notes(batch, answer.value)
                for batch, answer in zip(found, answers, strict=True)
            ]
            if self._check:
                made = self._checked(found, made, analyst)
            usage = spent()
        return Findings(tuple(chain.from_iterable(made)), usage)

    def _notes(self, batch: EpisodeBatch, said: Lessons | None) -> list[Note]:
        lessons = [] if said is None else said.lessons
        read = (_read(lesson, batch) for lesson in lessons)
        made = {one.id: one for one in read if one is not None}
        index = batch.indices[0]
        return [
            experience_note(self._benchmark, batch.group, index, one, "model")
            for one in [*made.values()][:MAX_LESSONS]
        ]

    def _checked(
        self, found: Sequence[EpisodeBatch], made: Sequence[list[Note]], analyst: Analyst
    ) -> list[list[Note]]:
        """Return the notes with a refusal in place of each experience that is not confirmed."""
        offers = [[note for note in notes if note.label == OFFERED] for notes in made]
        asked = [place for place, offered in enumerate(offers) if offered]
        answers = analyst.advisor.ask(
            [_asks_for_verdict(found[place], offers[place], analyst) for place in asked]
        )
        checked = [*made]
        for place, answer in zip(asked, answers, strict=True):
            confirmed = () if answer.value is None else answer.value.confirmed
            good = {id(note) for n, note in enumerate(offers[place], start=1) if n in confirmed}
            checked[place] = [
                note if note.label == REFUSED or id(note) in good else _refused(note)
                for note in made[place]
            ]
        return checked


def _asks_for_lessons(batch: EpisodeBatch, analyst: Analyst) -> Inquiry[Lessons]:
    def inputs(cap: int) -> Mapping[str, Any]:
        return {**_shown(batch, cap), "most": MAX_LESSONS}

    return Inquiry(
        prompt=PROMPT,
        schema=Lessons,
        inputs=inputs(_CHARS),
        purpose=EXPERIENCE,
        sampling=analyst.sampling,
        shorten=lambda: inputs(_CHARS // 4),
    )


def _asks_for_verdict(
    batch: EpisodeBatch, offered: Sequence[Note], analyst: Analyst
) -> Inquiry[Confirmed]:
    lessons = [
        {"number": number, **{name: note.evidence[name] for name in ("when_to_use", "content")}}
        for number, note in enumerate(offered, start=1)
    ]

    def inputs(cap: int) -> Mapping[str, Any]:
        return {**_shown(batch, cap), "lessons": lessons}

    return Inquiry(
        prompt=CHECK,
        schema=Confirmed,
        inputs=inputs(_CHARS),
        purpose="experience_check",
        sampling=analyst.sampling,
        shorten=lambda: inputs(_CHARS // 4),
    )


def _shown(batch: EpisodeBatch, cap: int) -> dict[str, Any]:
    """Return the inputs of a prompt that shows the task and the rollouts of a batch."""
    each = cap // len(batch.indices)
    return {
        "instruction": batch.group.task.instruction,
        "attempts": [
            {"success": rollout.success, **retraced(rollout, each, max_text=_STEP_CHARS)}
            for rollout in batch.rollouts
        ],
    }


def _read(lesson: Any, batch: EpisodeBatch) -> Experience | None:
    """Return the experience in a part of an answer; None if a text is missing."""
    said = lesson if isinstance(lesson, Mapping) else {}
    when, advice = (_text(said.get(name)) for name in ("when", "advice"))
    if not when or not advice:
        return None
    return Experience(
        when_to_use=when, content=advice, task_id=batch.group.task.id, source=batch.source
    )


def _text(said: Any) -> str:
    return clean_text(" ".join(said.split()), _MOST_CHARS) if isinstance(said, str) else ""


def _refused(note: Note) -> Note:
    return note.model_copy(update={"label": REFUSED, "evidence": FrozenDict(why=UNCONFIRMED)})
