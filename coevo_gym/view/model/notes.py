"""A table of the notes about an arm's episodes, and the notes about an individual episode.

The table has a row for each label that a study assigns, for each study that notes only numbers, for
each version of an interface, and for each piece of advice in a memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from typing import Any, Literal

from pydantic import Field

from coevo_gym.core.advice import AdviceOrigin, advice_ids
from coevo_gym.core.notes import EXPECTED, INTERFACE, LABELS, VERDICTS, Note
from coevo_gym.core.task import Split
from coevo_gym.envs.diagnosis import NO_FAILURES
from coevo_gym.view.collection import ShownRun, raise_as_damaged
from coevo_gym.view.reader import NoteGroup, StoredAdvice, ViewReader
from coevo_gym.view.rows import Shape, truncate

Tone = Literal["good", "bad", ""]

MAX_ROWS = 300
"""Maximum number of rows of each kind of notes."""
MAX_NOTES = 500
"""Maximum number of notes shown per episode."""
MAX_LINES = 100
"""Maximum number of texts per row."""
MAX_CHARACTERS = 2_000
"""Maximum length of a text; longer texts are truncated."""


class NotedEpisode(Shape):
    """A stored episode with a note.

    Attributes:
        id: id of the episode, used in paths.
        step: learner step.
    """

    id: str
    step: int


class NoteRow(Shape):
    """A row for the notes with one label (or none), for an interface, or for a piece of advice.

    Attributes:
        kind: name of the study that wrote the notes, ``interface``, or the memory of the advice.
        label: the label, or "" for notes without labels; short name of an interface's version; id
            of a piece of advice.
        tone: ``good`` for a favourable label, ``bad`` for an unfavourable label, or "".
        n: number of notes; of advice, the number of groups that its usefulness is measured on.
        first: learner step of the first note.
        last: learner step of the latest note.
        early: share of the label among the labelled notes of its kind in the first half of the
            learner steps, in [0, 1]; null if there are none.
        late: the same share in the second half.
        value: mean value of the notes; of advice, its latest usefulness in [-1, 1]; null if there
            is none.
        likeness: mean similarity between the expected and the actual next observation in [0, 1];
            null if nothing was expected.
        floor: mean similarity between the observations before and after the step; null if nothing
            was expected.
        n_tasks: number of tasks that the notes are about.
        says: texts: the lines that the interface adds, or the texts of the advice.
        why: reason for dropping the advice; "" if the memory still contains it.
        episodes: a few of the latest stored episodes with such a note, latest first; of an
            interface, the first episode; of advice, the one that it comes from.
    """

    kind: str
    label: str
    tone: Tone = ""
    n: int
    first: int
    last: int
    early: float | None = None
    late: float | None = None
    value: float | None = None
    likeness: float | None = None
    floor: float | None = None
    n_tasks: int = 0
    says: tuple[str, ...] = ()
    why: str = ""
    episodes: tuple[NotedEpisode, ...] = ()


class ArmNotes(Shape):
    """The table of notes about an arm's episodes.

    Attributes:
        arm: name of the arm.
        rows: by kind; the most frequent labels, the oldest interfaces and the most useful advice
            come first.
        left: number of rows omitted because there are too many.
    """

    arm: str
    rows: tuple[NoteRow, ...] = ()
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


def is_failure(label: str) -> bool:
    """Return True if a label stands for a failure. Unknown labels count as failures."""
    return bool(label) and label not in VERDICTS and label not in NO_FAILURES


def tone_of(label: str) -> Tone:
    """Return the tone of a label: favourable, unfavourable, or neither."""
    if is_failure(label) or VERDICTS.get(label, 0) < 0:
        return "bad"
    return "good" if VERDICTS.get(label, 0) > 0 else ""


def arm_notes(run: ShownRun, arm: str) -> ArmNotes:
    """Return the table of notes about an arm's episodes.

    Raises:
        NotFound: if the run has no such arm.
        Damaged: if the run cannot be read.
    """
    run.require_arm(arm)
    with raise_as_damaged():
        reader = run.reader
        parts = [
            *_label_rows(reader, arm),
            _interface_rows(reader, arm),
            *_advice_rows(reader, arm),
        ]
    rows = tuple(row for part in parts for row in part[:MAX_ROWS])
    return ArmNotes(arm=arm, rows=rows, left=sum(map(len, parts)) - len(rows))


def _label_rows(reader: ViewReader, arm: str) -> list[list[NoteRow]]:
    """Return the rows for each kind of note."""
    kinds: dict[str, list[NoteGroup]] = {}
    for group in reader.note_groups(arm):
        kinds.setdefault(group.kind, []).append(group)
    return [
        [_label_row(reader, arm, group, groups) for group in groups] for groups in kinds.values()
    ]


def _label_row(
    reader: ViewReader, arm: str, group: NoteGroup, of_kind: Sequence[NoteGroup]
) -> NoteRow:
    labelled = [one for one in of_kind if one.label]
    n_early = sum(one.n_early for one in labelled)
    n_late = sum(one.n - one.n_early for one in labelled)
    return NoteRow(
        kind=group.kind,
        label=group.label,
        tone=tone_of(group.label),
        n=group.n,
        first=group.first,
        last=group.last,
        early=group.n_early / n_early if group.label and n_early else None,
        late=(group.n - group.n_early) / n_late if group.label and n_late else None,
        value=group.value if group.most else None,
        likeness=group.likeness,
        floor=group.floor,
        n_tasks=group.n_tasks,
        episodes=tuple(
            NotedEpisode(id=_episode_id(arm, name, position), step=step)
            for name, position, step in reader.episodes_with_note(arm, group.kind, group.label)
        ),
    )


def _interface_rows(reader: ViewReader, arm: str) -> list[NoteRow]:
    """Return a row for each version of the interface, in order of first use."""
    rows: dict[str, NoteRow] = {}
    tasks: dict[str, set[str]] = {}
    for step, note in reader.notes_with_steps(arm, INTERFACE):
        version = _version_of(note)
        tasks.setdefault(version, set()).add(note.task_id)
        if (row := rows.get(version)) is None:
            stored = reader.has_episode(arm, note.group_id, note.index)
            id = _episode_id(arm, note.group_id, note.index)
            rows[version] = NoteRow(
                kind=INTERFACE,
                label=note.label or version,
                n=1,
                first=step,
                last=step,
                says=_added_lines(note),
                episodes=(NotedEpisode(id=id, step=step),) if stored else (),
            )
        else:
            rows[version] = row.model_copy(update={"n": row.n + 1, "last": step})
    return [
        row.model_copy(update={"n_tasks": len(tasks[version])}) for version, row in rows.items()
    ]


def interface_lines(reader: ViewReader, arm: str, version: str) -> tuple[str, ...] | None:
    """Return the lines that a version of an interface adds, or None if no note mentions it."""
    for _, note in reader.notes_with_steps(arm, INTERFACE):
        if version in (_version_of(note), note.label):
            return _added_lines(note)
    return None


def _version_of(note: Note) -> str:
    return str(note.evidence.get("version") or note.label)


def _added_lines(note: Note) -> tuple[str, ...]:
    says = note.evidence.get("says")
    return _shorten_texts(says if isinstance(says, (list, tuple)) else ())


def _shorten_texts(texts: Iterable[object]) -> tuple[str, ...]:
    items = list(texts)
    left = len(items) - MAX_LINES
    more = (f"… {left} more lines",) if left > 0 else ()
    return (*(truncate(str(text), MAX_CHARACTERS) for text in items[:MAX_LINES]), *more)


def _advice_rows(reader: ViewReader, arm: str) -> list[list[NoteRow]]:
    """Return each memory's rows: current advice before dropped advice, the most useful first."""
    memories: dict[str, list[NoteRow]] = {}
    for origin, changes in _learned_advice(reader.advice(arm), reader):
        last = changes[-1]
        stored = reader.has_episode(arm, origin.group_id, origin.index)
        id = _episode_id(arm, origin.group_id, origin.index)
        row = NoteRow(
            kind=last.memory,
            label=last.state.id,
            tone="good" if last.state.held else "bad",
            n=last.state.groups,
            first=changes[0].step,
            last=last.step,
            value=last.state.utility,
            n_tasks=1,
            says=_shorten_texts(origin.texts.values()),
            why="" if last.state.held else last.state.why,
            episodes=(NotedEpisode(id=id, step=changes[0].step),) if stored else (),
        )
        memories.setdefault(last.memory, []).append(row)
    return [sorted(rows, key=_usefulness_key) for rows in memories.values()]


def _usefulness_key(row: NoteRow) -> tuple[bool, float, int]:
    return (bool(row.why), 2.0 if row.value is None else -row.value, row.first)


def _learned_advice(
    changes: Iterable[StoredAdvice], reader: ViewReader
) -> list[tuple[AdviceOrigin, list[StoredAdvice]]]:
    """Return the advice that was learned from training tasks, each piece with its changes."""
    pieces: dict[tuple[str, str], list[StoredAdvice]] = {}
    for change in changes:
        pieces.setdefault((change.memory, change.state.id), []).append(change)
    learned = []
    for piece in pieces.values():
        origin = next((one.state.origin for one in piece if one.state.origin is not None), None)
        task = None if origin is None else reader.task(origin.task_id)
        if origin is not None and task is not None and task.split is Split.TRAIN:
            learned.append((origin, piece))
    return learned


class AdviceText(Shape):
    """The text of a piece of advice.

    Attributes:
        id: id of the advice.
        texts: texts of the advice by name, possibly truncated.
    """

    id: str
    texts: dict[str, str] = Field(default_factory=dict)


def advice_in_episode(
    reader: ViewReader, arm: str, cue_ids: Sequence[str], split: str
) -> tuple[AdviceText, ...]:
    """Return the advice used in a training episode. Return () for any other episode.

    Args:
        reader: reader of the run's database.
        arm: name of the arm.
        cue_ids: ids of the episode's cues.
        split: split of the episode's task.
    """
    ids: Collection[str] = advice_ids(cue_ids)
    if split != Split.TRAIN or not ids:
        return ()
    changes = [change for change in reader.advice(arm) if change.state.id in ids]
    texts = {
        piece[-1].state.id: {
            n: truncate(str(text), MAX_CHARACTERS) for n, text in origin.texts.items()
        }
        for origin, piece in _learned_advice(changes, reader)
    }
    return tuple(AdviceText(id=id, texts=texts[id]) for id in ids if id in texts)


def notes_except_interfaces(
    reader: ViewReader, arm: str, step: int, group: str, position: int
) -> list[Note]:
    """Return the notes about one training episode, except those of kind :data:`INTERFACE`."""
    notes = reader.notes_about(arm, step, group, position)
    return [note for note in notes if note.kind != INTERFACE]


def note_views(notes: list[Note], split: str) -> tuple[NoteView, ...]:
    """Return the notes about an episode for display.

    A note whose evidence counts the turns of its episode is about a turn; other notes are about a
    step or the whole episode. Nothing is returned for an episode that is not for training, because
    a label may depend on the ground truth of the task.
    """
    return tuple(map(_note_view, notes[:MAX_NOTES])) if split == Split.TRAIN else ()


def _note_view(note: Note) -> NoteView:
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
        expected=_expected_views(note),
        floor=_float_or_none(note.evidence.get("floor")),
        labels=_step_labels(note),
        says={
            name: truncate(text, MAX_CHARACTERS)
            for name, text in note.evidence.items()
            if isinstance(text, str) and text.strip()
        },
    )


def _step_labels(note: Note) -> tuple[int, ...]:
    labels = note.evidence.get(LABELS)
    if note.step >= 0 or not isinstance(labels, tuple):
        return ()
    return tuple(label if label in (-1, 1) else 0 for label in labels)


def _expected_views(note: Note) -> tuple[Expected, ...]:
    texts, likeness = note.evidence.get(EXPECTED), note.evidence.get("likeness")
    if not isinstance(texts, tuple):
        return ()
    numbers = likeness if isinstance(likeness, tuple) else ()
    parts = (None if text is None else truncate(str(text), MAX_CHARACTERS) for text in texts)
    return tuple(
        Expected(text=text, likeness=_float_or_none(number))
        for text, number in zip_longest(parts, numbers[: len(texts)])
    )


def _float_or_none(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _episode_id(arm: str, group: str, position: int) -> str:
    return f"{arm}.{group}.{position}"
