"""Conversion between notes and rows of the run store."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from coevo_gym.core.notes import EXPECTED, Note
from coevo_gym.core.task import canonical_json

COLUMNS = "task_id, group_id, position, step_of_episode, kind, label, value, source, evidence"
"""Column names of a note, in the order of :func:`note_to_row`."""


class NoteCount(NamedTuple):
    """The number of notes of a kind and label in an arm at a step."""

    arm: str
    step: int
    kind: str
    label: str
    n: int


class TurnCount(NamedTuple):
    """The number of notes of a kind and label about a turn, by the episode's number of turns."""

    arm: str
    kind: str
    label: str
    turn: int
    turns: int
    n: int


class StoredNote(NamedTuple):
    """A note with the learner step at which it was written."""

    at: int
    note: Note


def note_to_row(note: Note, *, whole: bool = True) -> tuple[Any, ...]:
    """Convert a note to a row; with ``whole=False``, without the text of expectations."""
    place = (note.task_id, note.group_id, note.index, note.step)
    evidence = note.model_dump(mode="json")["evidence"]
    if not whole:
        evidence.pop(EXPECTED, None)
    return (*place, note.kind, note.label, note.value, note.source, canonical_json(evidence))


def note_from_row(row: tuple[Any, ...]) -> Note:
    """Convert a row of :func:`note_to_row` back to a note."""
    task_id, group_id, index, step, kind, label, value, source, evidence = row
    return Note(
        kind=kind,
        task_id=task_id,
        group_id=group_id,
        index=index,
        step=step,
        label=label,
        value=value,
        evidence=json.loads(evidence),
        source=source,
    )
