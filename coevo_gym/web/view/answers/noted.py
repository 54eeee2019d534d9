"""What studies noted: about an arm's episodes over time, and about one of them."""

from __future__ import annotations

import math

from coevo_gym.core.notes import INTERFACE, Note
from coevo_gym.core.task import Split
from coevo_gym.report.data import ArmLabels
from coevo_gym.report.noted import arm_labels, env_steps_of, is_failure, shown_in
from coevo_gym.report.words import spread
from coevo_gym.web.view.answers.briefs import checked_arm
from coevo_gym.web.view.reader import ViewReader
from coevo_gym.web.view.shapes.notes import (
    ArmNotes,
    InterfaceRow,
    KindOfNotes,
    LabelRow,
    NotedEpisode,
    NoteView,
)
from coevo_gym.web.view.shelf import ShownRun, told_as_damaged

MOST_INTERFACES = 200
MOST_LINES = 100
MOST_RETURNS = 20
"""Times that an interface came back."""
MOST_CHARACTERS = 2_000
"""Of a line; the rest is cut."""
MOST_LABELLED = 12
"""Labels of a kind whose latest episodes are looked for."""
MOST_NOTES = 500
"""Notes of an episode that are shown."""


def arm_notes(run: ShownRun, arm: str) -> ArmNotes:
    """What was noted about an arm's episodes.

    Raises:
        NotFound: if the run has no such arm.
        Damaged: if it cannot be read.
    """
    checked_arm(run, arm)
    if not run.folder.database.is_file():
        return ArmNotes(arm=arm)  # it has stored nothing yet
    spent = env_steps_of(run.lines, arm)
    with told_as_damaged():
        reader = run.reader
        kinds = arm_labels(reader.note_counts(arm), arm, spent)
        interfaces = _interfaces(reader, arm, spent)
        shown = [interfaces[i] for i in spread(len(interfaces), MOST_INTERFACES)]
        return ArmNotes(
            arm=arm,
            kinds=tuple(_kind(reader, one) for one in kinds),
            interfaces=tuple(shown),
            left=len(interfaces) - len(shown),
        )


def notes_about(reader: ViewReader, arm: str, step: int, group: str, position: int) -> list[Note]:
    """The notes about one episode of training, those about its interface left out.

    Args:
        reader: of the run.
        arm: whose.
        step: of the learner.
        group: its group.
        position: its place in the group.
    """
    found = reader.notes_about(arm, step, group, position)
    return [note for note in found if note.kind != INTERFACE]


def note_views(notes: list[Note], split: str) -> tuple[NoteView, ...]:
    """The notes about an episode as they are shown.

    A note that counts the turns of its episode in its evidence is about a turn; others are about a
    step, or about the whole. Nothing is shown of an episode that is not for training: a label may
    rest on its task's ground truth.
    """
    return tuple(map(_view, notes[:MOST_NOTES])) if split == Split.TRAIN else ()


def interface_of(reader: ViewReader, arm: str, version: str) -> InterfaceRow | None:
    """What the interface of this version says; None if that was not noted."""
    known = _interfaces(reader, arm, {})
    return next((one for one in known if version in (one.version, one.name)), None)


def _view(note: Note) -> NoteView:
    place = note.step + 1 if note.step >= 0 else None
    turns = note.evidence.get("turns")
    of_turn = place is not None and isinstance(turns, int)
    return NoteView(
        kind=note.kind,
        label=note.label,
        failure=bool(note.label) and is_failure(note.label),
        step=None if of_turn else place,
        turn=place if of_turn else None,
        turns=turns if of_turn else None,
        value=note.value,
        source=note.source,
    )


def _kind(reader: ViewReader, found: ArmLabels) -> KindOfNotes:
    rows = []
    for at, label in enumerate(found.labels):
        latest = reader.episodes_noted(found.arm, found.kind, label) if at < MOST_LABELLED else []
        rows.append(
            LabelRow(
                label=label,
                failure=is_failure(label),
                total=sum(part.counts[at] for part in found.bins),
                counts=tuple(part.counts[at] for part in found.bins),
                latest=tuple(
                    NotedEpisode(id=_id(found.arm, group, position), step=step)
                    for group, position, step in latest
                ),
            )
        )
    return KindOfNotes(
        kind=found.kind,
        first=tuple(part.first for part in found.bins),
        last=tuple(part.last for part in found.bins),
        env_steps=tuple(
            part.env_steps if math.isfinite(part.env_steps) else None for part in found.bins
        ),
        total=tuple(part.n for part in found.bins),
        labels=tuple(rows),
        left=found.left,
    )


def _interfaces(reader: ViewReader, arm: str, spent: dict[int, float]) -> list[InterfaceRow]:
    rows = []
    for said, (at, note), again in shown_in(reader.notes_when(arm, INTERFACE)):
        stored = reader.stores(arm, note.group_id, note.index)
        rows.append(
            InterfaceRow(
                version=said.version,
                name=said.name,
                step=at,
                env_steps=spent.get(at),
                again=again[:MOST_RETURNS],
                says=tuple(map(_bounded, said.lines[:MOST_LINES])),
                left=max(0, len(said.lines) - MOST_LINES),
                episode=_id(arm, note.group_id, note.index) if stored else None,
            )
        )
    return rows


def _bounded(line: str) -> str:
    return line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]}…"


def _id(arm: str, group: str, position: int) -> str:
    return f"{arm}.{group}.{position}"
