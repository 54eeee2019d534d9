"""Studies that derive experiences from rollouts and measure how much they help."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, compress, groupby, islice, zip_longest
from statistics import fmean
from typing import Any

from pydantic import BaseModel

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.inquiry import Analyst, Inquiry, ModelT
from coevo_gym.core.notes import Findings, Note
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.spend import Usage
from coevo_gym.core.task import FrozenDict, Task
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.curricula.explore.summarise import rollout_inputs
from coevo_gym.methods.agentevolver.coach import experience_ids
from coevo_gym.methods.agentevolver.credit import GOOD
from coevo_gym.methods.agentevolver.experience import (
    EXPERIENCE,
    EXPERIENCE_USE,
    MAX_QUESTIONS,
    OFFERED,
    REFUSED,
    Experience,
    Source,
    make_experience_note,
)
from coevo_gym.methods.agentevolver.replays import (
    MAX_REPLAYS,
    label_by_replay,
    most_replays,
    select_affordable,
)
from coevo_gym.prompts.template import FOLDER

_FAILED = "!"
"""The symbol of a step that had no effect."""


@dataclass(frozen=True)
class RuleExperiences:
    """A study that derives experiences from the steps that were needed to solve tasks.

    As in attribution, the study replays each group's first success with steps removed. The symbols
    of the good steps form the advice; the user's requests, without words that contain a digit,
    describe when the advice applies. The rule is deliberately coarse: it is a control for
    model-written advice, and lets the user try the other parts without a model.

    Attributes:
        benchmark: replays actions and names the effects of steps.
        due: returns True if experiences should be written in the current learner step.
        max_replays: maximum replays per learner step; the longest successes are skipped.
    """

    kind = EXPERIENCE

    benchmark: Benchmark
    due: Callable[[], bool]
    max_replays: int = MAX_REPLAYS

    def examine(self, groups: Sequence[Group]) -> Findings:
        """Replay each group's first success; see :class:`~coevo_gym.core.seams.Study`."""
        if not self.due():
            return Findings()
        solved = [
            (group, index, trajectory)
            for group in groups
            for index, trajectory in islice(_successes(group), 1)
        ]
        costs = [most_replays(trajectory) for *_, trajectory in solved]
        notes: list[Note] = []
        env_steps = 0
        for group, index, trajectory in compress(
            solved, select_affordable(costs, self.max_replays)
        ):
            judgement = label_by_replay(self.benchmark, group.task, trajectory)
            env_steps += judgement.env_steps
            needed = [label == GOOD for label in judgement.labels]
            if experience := rule_experience(self.benchmark, group.task, trajectory, needed):
                notes.append(make_experience_note(self.benchmark, group, index, experience, "rule"))
        return Findings(tuple(notes), env_steps=env_steps)


def rule_experience(
    benchmark: Benchmark, task: Task, trajectory: Trajectory, needed: Sequence[bool]
) -> Experience | None:
    """Create an experience from a successful rollout, or return None if no step can be described.

    ``needed``, of shape (T,), is True for each step that was needed.
    """
    symbols = [symbol for symbol, _ in groupby(_symbols(benchmark, trajectory, needed))]
    when = " ".join(re.sub(r"\S*\d\S*", "", benchmark.evidence(task).said).split())
    if not symbols or not when:
        return None
    template = _load_templates().get(benchmark.name, _load_templates()["any"])
    return Experience(
        when_to_use=when,
        content=template.format(steps=", ".join(symbols)),
        task_id=task.id,
        source="rule",
    )


def _successes(group: Group) -> Iterator[tuple[int, Trajectory]]:
    return ((index, t) for index, t in enumerate(group.trajectories) if t.success)


def _symbols(benchmark: Benchmark, trajectory: Trajectory, needed: Sequence[bool]) -> Iterator[str]:
    """Yield the benchmark's identifiers for the actions that were needed to solve the task."""
    for step, counts in zip(trajectory.steps, needed, strict=True):
        if counts:
            alone = replace(step, observation="", shown="", extras=FrozenDict())
            yield from (s for s in benchmark.symbol(alone).split() if s != _FAILED)


@lru_cache(maxsize=1)
def _load_templates() -> Mapping[str, str]:
    return tomllib.loads((FOLDER / "agentevolver" / "rules.toml").read_text(encoding="utf-8"))


PROMPT, CHECK = "agentevolver/experience", "agentevolver/check"
"""Names of the prompts that ask for experiences and for a verdict on experiences."""
MAX_ATTEMPTS, MAX_LESSONS = 8, 3
"""Maximum number of rollouts per model query and of experiences per answer."""
UNCONFIRMED = "the model has not confirmed it"
"""The reason in notes that refuse an experience because the check did not confirm it."""

_STEP_CHARS = 2_000
"""Maximum number of characters per action and per observation."""
_CHARS = 60_000
"""Maximum number of characters per model query, which are divided equally among its rollouts."""
_MAX_CHARS = 1_000
"""Maximum number of characters stored for each field of an experience."""
_ORDER: tuple[Source, ...] = ("pair", "success", "failure")


class Lessons(BaseModel):
    """The experiences that a model derived from a set of rollouts.

    Attributes:
        lessons: objects with the tasks that an experience is for as ``when``, and its ``advice``.
    """

    lessons: list[Any]


class Confirmed(BaseModel):
    """A model's verdict on new experiences.

    Attributes:
        confirmed: positions of the confirmed experiences in the list that the model sees, from 1.
    """

    confirmed: list[int]


@dataclass(frozen=True)
class EpisodeBatch:
    """The rollouts described in one model query.

    Attributes:
        group: the rollouts' group.
        indices: the rollouts' positions in the group.
    """

    group: Group
    indices: tuple[int, ...]

    @property
    def rollouts(self) -> list[Trajectory]:
        """Return the rollouts in the order in which the prompt presents them."""
        return [self.group.trajectories[index] for index in self.indices]

    @property
    def source(self) -> Source:
        """Return the kind of this batch: ``pair``, ``success`` or ``failure``."""
        outcomes = {rollout.success for rollout in self.rollouts}
        return "pair" if len(outcomes) == 2 else "success" if True in outcomes else "failure"


def split_into_batches(group: Group, most: int = MAX_ATTEMPTS) -> list[EpisodeBatch]:
    """Split a group's rollouts, excluding lost ones, into batches for model queries.

    Pairs of a success and a failure come first, then the remaining successes or failures.

    Args:
        group: the group.
        most: maximum rollouts per batch; must be even, so that pairs stay together.
    """
    episodes = [
        (index, t) for index, t in enumerate(group.trajectories) if not t.end_reason.is_lost
    ]
    successes = [index for index, trajectory in episodes if trajectory.success]
    failures = [index for index, trajectory in episodes if not trajectory.success]
    mixed = chain.from_iterable(zip_longest(successes, failures))
    order = [index for index in mixed if index is not None]
    return [
        EpisodeBatch(group, tuple(order[first : first + most]))
        for first in range(0, len(order), most)
    ]


@dataclass(frozen=True)
class ModelExperiences:
    """A study that asks a model to derive experiences from each group's rollouts.

    A question shows at most 8 rollouts of one task, and its answer may contain up to 3 experiences.
    Experiences that reveal a solution are refused
    (:func:`~coevo_gym.methods.agentevolver.experience.describe_leak`). With ``check``, a second
    question per batch asks for a verdict, and unconfirmed experiences are also refused.

    The model sees the task, the steps (on WebShop with the final score), and whether the rollouts
    succeeded, but not the goal, the solution or the grader's report.

    Attributes:
        benchmark: provides the answers, to check experiences for leaks.
        due: returns True if experiences should be written in the current learner step.
        analyst: returns the model to query.
        check: True to also ask for a verdict on experiences.
        most: maximum batches per learner step to ask about. Batches with both outcomes come first,
            then batches with successes.

    Source: AgentEvolver (arXiv 2511.10395), section 4.2; the leak check is ours.
    """

    kind = EXPERIENCE

    benchmark: Benchmark
    due: Callable[[], bool]
    analyst: Callable[[], Analyst]
    check: bool = False
    most: int = MAX_QUESTIONS

    def examine(self, groups: Sequence[Group]) -> Findings:
        """Ask the model to summarise experiences; see :class:`~coevo_gym.core.seams.Study`."""
        if not self.due():
            return Findings()
        selection = [batch for group in groups for batch in split_into_batches(group)]
        selection = sorted(selection, key=lambda batch: _ORDER.index(batch.source))[: self.most]
        if not selection:
            return Findings()
        analyst = self.analyst()
        with analyst.study_scope(self.kind, groups) as spent:
            more = {"most": MAX_LESSONS}
            answers = analyst.advisor.ask(
                [
                    _make_inquiry(one, analyst, PROMPT, Lessons, EXPERIENCE, more)
                    for one in selection
                ]
            )
            all_notes = [
                self._make_notes(batch, answer.value)
                for batch, answer in zip(selection, answers, strict=True)
            ]
            if self.check:
                all_notes = self._confirm(selection, all_notes, analyst)
            usage = spent()
        return Findings(tuple(chain.from_iterable(all_notes)), usage)

    def _make_notes(self, batch: EpisodeBatch, answer: Lessons | None) -> list[Note]:
        lessons = [] if answer is None else answer.lessons
        read = (_parse_experience(lesson, batch) for lesson in lessons)
        experiences = {one.id: one for one in read if one is not None}
        index = batch.indices[0]
        return [
            make_experience_note(self.benchmark, batch.group, index, one, "model")
            for one in [*experiences.values()][:MAX_LESSONS]
        ]

    def _confirm(
        self, selection: Sequence[EpisodeBatch], all_notes: Sequence[list[Note]], analyst: Analyst
    ) -> list[list[Note]]:
        """Let the model confirm or reject each new experience, and return the updated notes."""
        offers = [[note for note in notes if note.label == OFFERED] for notes in all_notes]
        asked = [place for place, offered in enumerate(offers) if offered]
        answers = analyst.advisor.ask(
            [_verdict_inquiry(selection[place], offers[place], analyst) for place in asked]
        )
        checked = [*all_notes]
        for place, answer in zip(asked, answers, strict=True):
            confirmed = () if answer.value is None else answer.value.confirmed
            good = {id(note) for n, note in enumerate(offers[place], start=1) if n in confirmed}
            checked[place] = [
                note if note.label == REFUSED or id(note) in good else _refuse(note)
                for note in all_notes[place]
            ]
        return checked


def _make_inquiry(
    batch: EpisodeBatch,
    analyst: Analyst,
    prompt: str,
    schema: type[ModelT],
    purpose: str,
    more: Mapping[str, Any],
) -> Inquiry[ModelT]:
    def inputs(cap: int) -> Mapping[str, Any]:
        return {**_prompt_inputs(batch, cap), **more}

    return Inquiry(
        prompt=prompt,
        schema=schema,
        inputs=inputs(_CHARS),
        purpose=purpose,
        sampling=analyst.sampling,
        shorten=lambda: inputs(_CHARS // 4),
    )


def _verdict_inquiry(
    batch: EpisodeBatch, offered: Sequence[Note], analyst: Analyst
) -> Inquiry[Confirmed]:
    lessons = [
        {"number": number, **{name: note.evidence[name] for name in ("when_to_use", "content")}}
        for number, note in enumerate(offered, start=1)
    ]
    more = {"lessons": lessons}
    return _make_inquiry(batch, analyst, CHECK, Confirmed, "experience_check", more)


def _prompt_inputs(batch: EpisodeBatch, cap: int) -> dict[str, Any]:
    """Return the prompt inputs for a batch of rollouts."""
    each = cap // len(batch.indices)
    return {
        "instruction": batch.group.task.instruction,
        "attempts": [
            {"success": rollout.success, **rollout_inputs(rollout, each, max_text=_STEP_CHARS)}
            for rollout in batch.rollouts
        ],
    }


def _parse_experience(lesson: Any, batch: EpisodeBatch) -> Experience | None:
    """Parse an experience from part of an answer; return None if a field is missing."""
    fields = lesson if isinstance(lesson, Mapping) else {}
    when, advice = (_clean_field(fields.get(name)) for name in ("when", "advice"))
    if not when or not advice:
        return None
    return Experience(
        when_to_use=when, content=advice, task_id=batch.group.task.id, source=batch.source
    )


def _clean_field(value: Any) -> str:
    return clean_text(" ".join(value.split()), _MAX_CHARS) if isinstance(value, str) else ""


def _refuse(note: Note) -> Note:
    return note.model_copy(update={"label": REFUSED, "evidence": FrozenDict(why=UNCONFIRMED)})


def success_difference(guided: Sequence[float], free: Sequence[float]) -> float | None:
    """Return the difference in success rate between rollouts with and without an experience.

    Args:
        guided: success (0 or 1) of each rollout with the experience.
        free: success (0 or 1) of each rollout without experiences.

    Returns:
        The difference in [-1, 1], or None if there are no rollouts of one kind.

    Example:
        >>> success_difference([1, 0], [0, 0])
        0.5
    """
    return fmean(guided) - fmean(free) if guided and free else None


class ExperienceUse:
    """A study that compares a group's rollouts with and without an experience.

    It writes a note for each experience. The note's value is the difference in success rates; its
    label is ``helped``, ``harmed`` or ``even``; and its evidence has the ``experience``'s id and
    the rates ``guided`` and ``free``. A rollout may get several experiences, each of which gets the
    credit for all of them. Lost rollouts do not count.

    Args:
        spent: returns the cost of adapting experiences to tasks since the last call, which becomes
            part of the findings' cost.
    """

    kind = EXPERIENCE_USE

    def __init__(self, spent: Callable[[], Mapping[str, Usage]] = dict) -> None:
        self._spent = spent

    def examine(self, groups: Sequence[Group]) -> Findings:
        """Compare the rollouts in each group; see :class:`~coevo_gym.core.seams.Study`."""
        notes = tuple(note for group in groups for note in self._compare_rollouts(group))
        return Findings(notes, self._spent())

    def _compare_rollouts(self, group: Group) -> list[Note]:
        free: list[float] = []
        guided: dict[str, list[float]] = {}
        first: dict[str, int] = {}
        for index, trajectory in enumerate(group.trajectories):
            if trajectory.end_reason.is_lost:
                continue
            ids = experience_ids(trajectory.cue_ids)
            for id in ids:
                guided.setdefault(id, []).append(float(trajectory.success))
                first.setdefault(id, index)
            if not ids:
                free.append(float(trajectory.success))
        notes = []
        for id, outcomes in guided.items():
            gained = success_difference(outcomes, free)
            if gained is not None:
                notes.append(
                    self._make_note(group, first[id], id, gained, fmean(outcomes), fmean(free))
                )
        return notes

    def _make_note(
        self, group: Group, index: int, id: str, gained: float, guided: float, free: float
    ) -> Note:
        return Note(
            kind=self.kind,
            task_id=group.task.id,
            group_id=group.id,
            index=index,
            label="helped" if gained > 0 else "harmed" if gained < 0 else "even",
            value=gained,
            evidence=FrozenDict(experience=id, guided=guided, free=free),
        )
