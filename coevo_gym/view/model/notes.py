"""Notes by studies: about an arm's episodes over time, and about a single episode."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, zip_longest
from typing import Any

from pydantic import Field

from coevo_gym.core.notes import EXPECTED, INTERFACE, LABELS, Note
from coevo_gym.core.task import Split
from coevo_gym.view.model.base import Shape, cut
from coevo_gym.view.model.note_counts import (
    MOST_CHARACTERS,
    InterfaceRow,
    KindOfNotes,
    NotedEpisode,
    NotedTask,
    Tone,
    arm_labels,
    is_failure,
    shown_in,
    tone_of,
)
from coevo_gym.view.numbers import spread
from coevo_gym.view.reader import NoteMeans, ViewReader
from coevo_gym.view.shelf import ShownRun, told_as_damaged


class NumbersOfNotes(Shape):
    """Numbers from an arm's notes of one kind about steps of episodes, over the arm's steps.

    All arrays have one entry per learner step.

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
    """Notes about an arm's episodes; empty if there are none.

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
    """An expected observation after a step.

    Attributes:
        text: the expected text, possibly cut; "" if there is none; null if it equals the actual
            one.
        likeness: similarity to the actual observation in [0, 1]; null if not noted.
    """

    text: str | None
    likeness: float | None = None


class NoteView(Shape):
    """A finding about a training episode.

    Attributes:
        kind: name of the study that wrote the note.
        label: a label from the study's own list, or "".
        failure: true if the label denotes a failure.
        tone: ``good`` or ``bad`` if the label is favourable or not, or "".
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
    """Return the notes about one training episode, without those about its interface.

    Args:
        reader: reader of the run's database.
        arm: name of the arm.
        step: learner step.
        group: id of its group.
        position: its position in the group.
    """
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
    """Return the notes on an interface version; None if there are none."""
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
    """Add the latest episodes and the tasks of the most frequent labels."""
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
