"""Notes as rows of the run store."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from coevo_gym.core.notes import EXPECTED, Note
from coevo_gym.core.task import canonical_json

COLUMNS = "task_id, group_id, position, step_of_episode, kind, label, value, source, evidence"
"""The columns of a note itself, in the order of :func:`note_to_row`."""


class NoteCount(NamedTuple):
    """How many notes of a kind and label an arm had at a step."""

    arm: str
    step: int
    kind: str
    label: str
    n: int


class TurnCount(NamedTuple):
    """How many notes of a kind and label an arm had about a turn of episodes with so many turns."""

    arm: str
    kind: str
    label: str
    turn: int
    turns: int
    n: int


class StoredNote(NamedTuple):
    """A note with the learner's step at which it was written."""

    at: int
    note: Note


def note_to_row(note: Note, *, whole: bool = True) -> tuple[Any, ...]:
    """A note as what is stored of it; unless it is whole, without texts that were expected."""
    place = (note.task_id, note.group_id, note.index, note.step)
    evidence = note.model_dump(mode="json")["evidence"]
    if not whole:
        evidence.pop(EXPECTED, None)
    return (*place, note.kind, note.label, note.value, note.source, canonical_json(evidence))


def note_from_row(row: tuple[Any, ...]) -> Note:
    """Inverse of :func:`note_to_row`."""
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
