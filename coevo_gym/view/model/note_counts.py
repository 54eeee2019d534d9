"""Statistics of notes over time: labels, and versions of an arm's interface."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Literal

from coevo_gym.core.notes import INTERFACE, VERDICTS, Note
from coevo_gym.envs.diagnosis import NO_FAILURES, Position, position
from coevo_gym.store.note_rows import NoteCount, StoredNote, TurnCount
from coevo_gym.view.model.base import Shape, TaskBrief, cut

Tone = Literal["good", "bad", ""]


class NotedEpisode(Shape):
    """A stored episode that has a note.

    Attributes:
        id: id of the episode, used in paths.
        step: learner step.
    """

    id: str
    step: int


class NotedTask(Shape):
    """A task that notes describe or mention.

    Attributes:
        task: the task.
        n: number of notes.
        step: learner step of the latest note.
    """

    task: TaskBrief
    n: int
    step: int


class LabelRow(Shape):
    """The number of notes of one kind that carry a label.

    Attributes:
        label: the label.
        failure: true if the label denotes a failure.
        tone: ``good`` or ``bad`` if the label is favourable or not, or "".
        total: number of notes with the label.
        counts: number of notes with the label in each interval of steps.
        thirds: number of notes about turns in the first, the middle and the last third of an
            episode with several turns; null if no such note has the label.
        latest: a few of the latest stored episodes with such a note, latest first.
        n_tasks: number of tasks that the notes mention, or else describe.
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
    """An arm's labelled notes of one kind over its steps.

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
"""Maximum number of ranges of steps in which labels are counted."""

MAX_LABELS = 40
"""Maximum number of labels per kind that are listed; all others are only counted."""

MOST_LINES = 100
"""Maximum number of listed lines of an interface."""
MOST_CHARACTERS = 2_000
"""Maximum length of a line; longer lines are cut."""
MOST_RETURNS = 20
"""Maximum number of listed returns of an interface."""

EnvSteps = Mapping[int, float]
"""Env steps that an arm had used by the end of each learner step."""


class InterfaceRow(Shape):
    """An interface version that presented episodes to the policy.

    Attributes:
        version: version, as named in episodes.
        name: short form of the version.
        step: learner step at which the version was first used.
        env_steps: env steps spent by the end of that step.
        again: first steps, up to 20, at which the version returned after another one.
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
    """Return the counts of each label in an arm's notes over its steps, by kind of notes.

    Notes without a label and notes about interfaces are ignored. The rows of labels have neither
    episodes nor tasks.

    Args:
        counts: note counts of any arms.
        arm: name of the arm.
        env_steps: env steps by learner step.
        turns: counts of notes about turns, of any arms.

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
    """Return the numbers of notes about early, middle and late turns, by label."""
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
    """Divide steps from 1 to ``last`` into at most ``most`` ranges of almost equal size.

    Example:
        >>> parts_of(7, most=3)
        [(1, 2), (3, 5), (6, 7)]
    """
    n = min(last, most)
    ends = [round(last * i / n) for i in range(n + 1)] if n else []
    return [(before + 1, end) for before, end in pairwise(ends)]


def is_failure(label: str) -> bool:
    """Return True if a label stands for a failure, as all do except verdicts and known others."""
    return bool(label) and label not in VERDICTS and label not in NO_FAILURES


def tone_of(label: str) -> Tone:
    """Return whether a label is favourable, unfavourable, or neither."""
    if is_failure(label) or VERDICTS.get(label, 0) < 0:
        return "bad"
    return "good" if VERDICTS.get(label, 0) > 0 else ""


def shown_in(notes: Iterable[StoredNote]) -> list[tuple[InterfaceRow, Note]]:
    """Return the versions in notes of kind :data:`INTERFACE`, each with the first note about it.

    They are in order of first use; parts missing in a note's evidence are empty. A version is used
    again at a step if that step has a note about it and the previous step with such notes has none.
    If each version was noted only once, later uses are unknown.

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
