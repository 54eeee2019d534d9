"""Analysis notes about an arm's episodes or about an individual episode."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby, pairwise, zip_longest
from typing import Any, Literal

from pydantic import Field

from coevo_gym.core.notes import EXPECTED, INTERFACE, LABELS, VERDICTS, Note
from coevo_gym.core.task import Split
from coevo_gym.envs.diagnosis import NO_FAILURES, Position, position
from coevo_gym.store.rows import NoteCount, StoredNote, TurnCount
from coevo_gym.view.numbers import spread
from coevo_gym.view.reader import NoteMeans, ViewReader
from coevo_gym.view.rows import Shape, TaskBrief, cut
from coevo_gym.view.shelf import ShownRun, told_as_damaged

Tone = Literal["good", "bad", ""]


class NotedEpisode(Shape):
    """A stored episode with a note.

    Attributes:
        id: id of the episode, used in paths.
        step: learner step.
    """

    id: str
    step: int


class NotedTask(Shape):
    """A task that is the subject of notes or is mentioned in them.

    Attributes:
        task: the task.
        n: number of notes.
        step: learner step of the latest note.
    """

    task: TaskBrief
    n: int
    step: int


class LabelRow(Shape):
    """The number of notes with a given kind and label, in total and over time.

    Attributes:
        label: the label.
        failure: true if the label denotes a failure.
        tone: ``good`` for a favourable label, ``bad`` for an unfavourable label, or "".
        total: number of notes with the label.
        counts: number of notes with the label in each interval of steps.
        thirds: number of notes about turns in the first, the middle and the last third of an
            episode with several turns; null if no such note has the label.
        latest: a few of the latest stored episodes with such a note, latest first.
        n_tasks: number of tasks that the notes mention or, if they mention none, describe.
        tasks: some of these tasks, sorted by latest note.
    """

    label: str
    failure: bool
    tone: Tone = ""
    total: int
    counts: tuple[int, ...]
    thirds: tuple[int, int, int] | None = None
    latest: tuple[NotedEpisode, ...] = ()
    n_tasks: int = 0
    tasks: tuple[NotedTask, ...] = ()


class KindOfNotes(Shape):
    """Counts of an arm's labelled notes of one kind, per step interval.

    All arrays have one entry per interval of steps.

    Attributes:
        kind: name of the study that wrote the notes.
        first: first learner step of each interval.
        last: last learner step of each interval.
        env_steps: env steps spent by the end of each interval.
        total: number of notes in each interval, including notes whose label has no row.
        labels: label rows, most frequent first.
        left: number of labels omitted because there are too many.
    """

    kind: str
    first: tuple[int, ...]
    last: tuple[int, ...]
    env_steps: tuple[float | None, ...]
    total: tuple[int, ...]
    labels: tuple[LabelRow, ...]
    left: int = 0


MAX_BINS = 20
"""Maximum number of step ranges for which labels are counted."""

MAX_LABELS = 40
"""Maximum number of labels listed per kind; all other labels are only counted."""

MOST_LINES = 100
"""Maximum number of lines listed per interface."""
MOST_CHARACTERS = 2_000
"""Maximum length of a line; longer lines are truncated."""
MOST_RETURNS = 20
"""Maximum number of listed steps at which a version of the agent interface was used again."""

EnvSteps = Mapping[int, float]
"""The cumulative number of env steps at the end of each learner step of an arm."""


class InterfaceRow(Shape):
    """A version of the agent interface that was used in some episodes.

    Attributes:
        version: version, as named in episodes.
        name: short form of the version.
        step: learner step at which the version was first used.
        env_steps: env steps spent by the end of that step.
        again: steps (at most 20) at which the version was used again after another version.
        says: lines that the interface adds to the env's own text.
        left: number of lines omitted because there are too many.
        episode: id of the first episode with this version; null if it is not stored.
    """

    version: str
    name: str
    step: int
    env_steps: float | None = None
    again: tuple[int, ...] = ()
    says: tuple[str, ...] = ()
    left: int = 0
    episode: str | None = None


def arm_labels(
    counts: Iterable[NoteCount],
    arm: str,
    env_steps: EnvSteps,
    turns: Iterable[TurnCount] = (),
) -> list[KindOfNotes]:
    """Count the labels in an arm's notes, by kind of note and learner step.

    Notes without a label and notes about interfaces are ignored. The label rows contain
    neither episodes nor tasks.

    Args:
        counts: note counts, possibly of several arms.
        arm: name of the arm.
        env_steps: env steps by learner step.
        turns: counts of notes about turns, possibly of several arms.

    Example:
        >>> counts = [NoteCount("a", 1, "turn", "pass", 3), NoteCount("a", 2, "turn", "late", 1)]
        >>> (turn,) = arm_labels(counts, "a", {1: 100.0, 2: 200.0})
        >>> [(row.label, row.counts) for row in turn.labels]
        [('pass', (3, 0)), ('late', (0, 1))]
    """
    mine = [one for one in counts if one.arm == arm and one.label and one.kind != INTERFACE]
    last = max((*env_steps, *(one.step for one in mine)), default=0)
    placed = [one for one in turns if one.arm == arm]
    return [
        _of_kind(
            kind,
            [one for one in mine if one.kind == kind],
            _thirds(one for one in placed if one.kind == kind),
            last,
            env_steps,
        )
        for kind in sorted({one.kind for one in mine})
    ]


def _thirds(turns: Iterable[TurnCount]) -> dict[str, tuple[int, int, int]]:
    """Count the notes about early, middle and late turns, separately for each label."""
    found: dict[str, Counter[Position]] = {}
    for one in turns:
        if one.turns > 1:
            found.setdefault(one.label, Counter())[position(one.turn, one.turns)] += one.n
    return {label: (n["early"], n["middle"], n["late"]) for label, n in found.items()}


def _of_kind(
    kind: str,
    counts: list[NoteCount],
    thirds: Mapping[str, tuple[int, int, int]],
    last: int,
    env_steps: EnvSteps,
) -> KindOfNotes:
    parts = parts_of(last)
    ends = [end for _, end in parts]
    total, found = Counter[str](), [Counter[str]() for _ in parts]
    for one in counts:
        total[one.label] += one.n
        found[bisect_left(ends, one.step)][one.label] += one.n
    spent = dict[int, float | None].fromkeys(ends)
    for step in sorted(env_steps):
        spent[ends[bisect_left(ends, step)]] = float(env_steps[step])
    ranked = sorted(total, key=lambda label: (-total[label], label))
    return KindOfNotes(
        kind=kind,
        first=tuple(first for first, _ in parts),
        last=tuple(ends),
        env_steps=tuple(spent.values()),
        total=tuple(mine.total() for mine in found),
        labels=tuple(
            LabelRow(
                label=label,
                failure=is_failure(label),
                tone=tone_of(label),
                total=total[label],
                counts=tuple(mine[label] for mine in found),
                thirds=thirds.get(label),
            )
            for label in ranked[:MAX_LABELS]
        ),
        left=max(0, len(ranked) - MAX_LABELS),
    )


def parts_of(last: int, most: int = MAX_BINS) -> list[tuple[int, int]]:
    """Divide steps 1 to ``last`` into ranges of nearly equal size. Return at most ``most`` ranges.

    Example:
        >>> parts_of(7, most=3)
        [(1, 2), (3, 5), (6, 7)]
    """
    n = min(last, most)
    ends = [round(last * i / n) for i in range(n + 1)] if n else []
    return [(before + 1, end) for before, end in pairwise(ends)]


def is_failure(label: str) -> bool:
    """Return True if a label stands for a failure. Unknown labels count as failures."""
    return bool(label) and label not in VERDICTS and label not in NO_FAILURES


def tone_of(label: str) -> Tone:
    """Return the tone of a label: favourable, unfavourable, or neither."""
    if is_failure(label) or VERDICTS.get(label, 0) < 0:
        return "bad"
    return "good" if VERDICTS.get(label, 0) > 0 else ""


def shown_in(notes: Iterable[StoredNote]) -> list[tuple[InterfaceRow, Note]]:
    """Pair each version of the agent interface with the first :data:`INTERFACE` note about it.

    Versions are in order of first use; parts missing in a note's evidence are empty. A version is
    used again at a step if that step has a note about the version, but the previous step with notes
    on interfaces does not. If each version was noted only once, later uses are unknown.

    Args:
        notes: notes of one arm, in order.
    """
    found: dict[str, tuple[InterfaceRow, Note]] = {}
    before: set[str] = set()
    now: set[str] = set()
    last = 0
    for at, note in notes:
        if at != last:
            before, now, last = now, set(), at
        version = str(note.evidence.get("version") or note.label)
        if version not in found:
            found[version] = _interface(version, at, note), note
        elif version not in before | now:
            row, first = found[version]
            again = (*row.again, at)[:MOST_RETURNS]
            found[version] = row.model_copy(update={"again": again}), first
        now.add(version)
    return list(found.values())


def _interface(version: str, step: int, note: Note) -> InterfaceRow:
    says = note.evidence.get("says")
    lines = says if isinstance(says, (list, tuple)) else ()
    return InterfaceRow(
        version=version,
        name=note.label or version,
        step=step,
        says=tuple(cut(str(line), MOST_CHARACTERS) for line in lines[:MOST_LINES]),
        left=max(0, len(lines) - MOST_LINES),
    )


class NumbersOfNotes(Shape):
    """Per-step statistics for notes of one kind.

    Only notes about episode steps count. All arrays have one entry per learner step.

    Attributes:
        kind: name of the study that wrote the notes.
        step: learner step.
        n: number of notes at that step.
        value: mean value of the notes; empty if all values are 0.
        likeness: mean similarity in [0, 1] between the expected and the actual next observation;
            empty if nothing was expected.
        floor: mean similarity in [0, 1] between the observations before and after the step; empty
            if nothing was expected.
    """

    kind: str
    step: tuple[int, ...]
    n: tuple[int, ...]
    value: tuple[float, ...] = ()
    likeness: tuple[float | None, ...] = ()
    floor: tuple[float | None, ...] = ()


class ArmNotes(Shape):
    """Notes about an arm's episodes.

    Attributes:
        arm: name of the arm.
        kinds: kinds of notes that carry labels.
        numbers: kinds of notes about steps that carry numbers.
        interfaces: interface versions of the episodes, in order of first use.
        left: number of interfaces omitted from the middle because there are too many.
    """

    arm: str
    kinds: tuple[KindOfNotes, ...] = ()
    numbers: tuple[NumbersOfNotes, ...] = ()
    interfaces: tuple[InterfaceRow, ...] = ()
    left: int = 0


class Expected(Shape):
    """A prediction of the observation that follows a step.

    Attributes:
        text: the expected text, possibly truncated; "" if there is none; null if it equals the
            actual text.
        likeness: similarity to the actual observation in [0, 1]; null if not noted.
    """

    text: str | None
    likeness: float | None = None


class NoteView(Shape):
    """A finding from the analysis of a training episode.

    Attributes:
        kind: name of the study that wrote the note.
        label: a label from the study's own list, or "".
        failure: true if the label denotes a failure.
        tone: ``good`` for a favourable label, ``bad`` for an unfavourable label, or "".
        step: the step described, from 1; null for a note about a turn or the whole episode.
        turn: the user's turn described, from 1; null if the note is not about a turn.
        turns: number of turns in the episode; null if the note is not about a turn.
        value: the note's number.
        source: author of the note: ``rule``, ``replay`` or ``model``.
        expected: observations expected after the step, the next one first.
        floor: similarity between the observations before and after the step; null if not noted.
        labels: for each step of the episode 1 (good), -1 (bad) or 0 (no label); empty if the study
            does not label steps.
        says: texts from the note's evidence, by name.
    """

    kind: str
    label: str
    failure: bool
    tone: Tone = ""
    step: int | None = None
    turn: int | None = None
    turns: int | None = None
    value: float = 0.0
    source: str = "rule"
    expected: tuple[Expected, ...] = ()
    floor: float | None = None
    labels: tuple[int, ...] = ()
    says: dict[str, str] = Field(default_factory=dict)


MOST_INTERFACES = 200
MOST_LABELLED = 12
"""Maximum number of labels per kind for which the latest episodes are listed."""
MOST_TASKS = 12
"""Maximum number of tasks listed per label."""
MOST_NOTES = 500
"""Maximum number of notes shown per episode."""
MOST_STEPS = 1_000
"""Maximum number of learner steps with numbers."""


def arm_notes(run: ShownRun, arm: str) -> ArmNotes:
    """Return the notes about an arm's episodes.

    Raises:
        NotFound: if the run has no such arm.
        Damaged: if the run cannot be read.
    """
    run.require_arm(arm)
    if not run.folder.database.is_file():
        return ArmNotes(arm=arm)  # nothing is stored yet
    lines = run.lines_of(arm)
    spent = {at: float(n) for at, line in lines.items() if (n := line.get("env_steps")) is not None}
    with told_as_damaged():
        run.index.refresh()
        reader = run.reader
        kinds = arm_labels(reader.note_counts(arm), arm, spent, reader.turn_counts())
        interfaces = _interfaces(reader, arm, spent)
        shown = [interfaces[i] for i in spread(len(interfaces), MOST_INTERFACES)]
        return ArmNotes(
            arm=arm,
            kinds=tuple(_kind(run, arm, one) for one in kinds),
            numbers=tuple(_numbers(reader.note_means(arm))),
            interfaces=tuple(shown),
            left=len(interfaces) - len(shown),
        )


def notes_about(reader: ViewReader, arm: str, step: int, group: str, position: int) -> list[Note]:
    """Return the notes about one training episode, except those of kind :data:`INTERFACE`."""
    found = reader.notes_about(arm, step, group, position)
    return [note for note in found if note.kind != INTERFACE]


def note_views(notes: list[Note], split: str) -> tuple[NoteView, ...]:
    """Return the notes about an episode for display.

    A note whose evidence counts the turns of its episode is about a turn; other notes are about a
    step or the whole episode. Nothing is returned for an episode that is not for training, because
    a label may depend on its task's ground truth.
    """
    return tuple(map(_view, notes[:MOST_NOTES])) if split == Split.TRAIN else ()


def interface_of(reader: ViewReader, arm: str, version: str) -> InterfaceRow | None:
    """Return the table row for an agent-interface version, or None if no note mentions it."""
    known = _interfaces(reader, arm, {})
    return next((one for one in known if version in (one.version, one.name)), None)


def _view(note: Note) -> NoteView:
    place = note.step + 1 if note.step >= 0 else None
    turns = note.evidence.get("turns")
    of_turn = place is not None and isinstance(turns, int)
    return NoteView(
        kind=note.kind,
        label=note.label,
        failure=is_failure(note.label),
        tone=tone_of(note.label),
        step=None if of_turn else place,
        turn=place if of_turn else None,
        turns=turns if of_turn else None,
        value=note.value,
        source=note.source,
        expected=_expected(note),
        floor=_number(note.evidence.get("floor")),
        labels=_labels(note),
        says={
            name: cut(text, MOST_CHARACTERS)
            for name, text in note.evidence.items()
            if isinstance(text, str) and text.strip()
        },
    )


def _labels(note: Note) -> tuple[int, ...]:
    found = note.evidence.get(LABELS)
    if note.step >= 0 or not isinstance(found, tuple):
        return ()
    return tuple(label if label in (-1, 1) else 0 for label in found)


def _expected(note: Note) -> tuple[Expected, ...]:
    texts, found = note.evidence.get(EXPECTED), note.evidence.get("likeness")
    if not isinstance(texts, tuple):
        return ()
    numbers = found if isinstance(found, tuple) else ()
    said = (None if text is None else cut(str(text), MOST_CHARACTERS) for text in texts)
    return tuple(
        Expected(text=text, likeness=_number(number))
        for text, number in zip_longest(said, numbers[: len(texts)])
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _numbers(means: Iterable[NoteMeans]) -> Iterable[NumbersOfNotes]:
    for kind, group in groupby(means, key=lambda one: one.kind):
        found = list(group)
        rows = [found[i] for i in spread(len(found), MOST_STEPS)]
        valued = any(row.most for row in rows)
        alike = any(row.likeness is not None for row in rows)
        if valued or alike:
            yield NumbersOfNotes(
                kind=kind,
                step=tuple(row.step for row in rows),
                n=tuple(row.n for row in rows),
                value=tuple(row.value for row in rows) if valued else (),
                likeness=tuple(row.likeness for row in rows) if alike else (),
                floor=tuple(row.floor for row in rows) if alike else (),
            )


def _kind(run: ShownRun, arm: str, found: KindOfNotes) -> KindOfNotes:
    """Add example episodes and tasks to the rows of the most frequent labels."""
    reader, rows = run.reader, list(found.labels)
    for at, row in enumerate(rows[:MOST_LABELLED]):
        tasks = reader.tasks_noted(arm, found.kind, row.label)
        rows[at] = row.model_copy(
            update={
                "latest": tuple(
                    NotedEpisode(id=_id(arm, group, position), step=step)
                    for group, position, step in reader.episodes_noted(arm, found.kind, row.label)
                ),
                "n_tasks": len(tasks),
                "tasks": tuple(
                    NotedTask(task=run.brief_of(id), n=n, step=step)
                    for id, n, step in tasks[:MOST_TASKS]
                ),
            }
        )
    return found.model_copy(update={"labels": tuple(rows)})


def _interfaces(reader: ViewReader, arm: str, spent: dict[int, float]) -> list[InterfaceRow]:
    rows = []
    for row, note in shown_in(reader.notes_when(arm, INTERFACE)):
        stored = reader.stores(arm, note.group_id, note.index)
        episode = _id(arm, note.group_id, note.index) if stored else None
        rows.append(row.model_copy(update={"env_steps": spent.get(row.step), "episode": episode}))
    return rows


def _id(arm: str, group: str, position: int) -> str:
    return f"{arm}.{group}.{position}"
