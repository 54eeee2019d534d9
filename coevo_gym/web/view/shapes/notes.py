"""What studies noted about an arm's episodes, and the interfaces that these were shown through."""

from __future__ import annotations

from coevo_gym.web.view.shapes.base import Shape


class NotedEpisode(Shape):
    """A stored episode that has a note.

    Attributes:
        id: what paths call it.
        step: step of the learner.
    """

    id: str
    step: int


class LabelRow(Shape):
    """How often an arm's notes of a kind carry a label.

    Attributes:
        label: the label.
        failure: whether it tells of a failure.
        total: notes that carry it.
        counts: the same in each part of the steps.
        latest: a few of the latest stored episodes that have one, the latest first.
    """

    label: str
    failure: bool
    total: int
    counts: tuple[int, ...]
    latest: tuple[NotedEpisode, ...] = ()


class KindOfNotes(Shape):
    """An arm's notes of one kind that carry a label, over its steps.

    The arrays are equally long: each has one number for each part of the steps.

    Attributes:
        kind: which study wrote them.
        first: the first step of the learner in each part.
        last: the last one.
        env_steps: env steps spent by the end of each part.
        total: notes in each part, those without a row included.
        labels: the most frequent first.
        left: labels that have no row, as there are too many.
    """

    kind: str
    first: tuple[int, ...]
    last: tuple[int, ...]
    env_steps: tuple[float | None, ...]
    total: tuple[int, ...]
    labels: tuple[LabelRow, ...]
    left: int = 0


class InterfaceRow(Shape):
    """An interface through which episodes were shown.

    Attributes:
        version: its version, as episodes name it.
        name: the version, short.
        step: step of the learner at which it was first shown.
        env_steps: env steps spent by the end of that step.
        again: the first steps, up to 20, from which it was shown again after others.
        says: what it says beyond the env's own text, in lines.
        left: lines that are left out, as there are too many.
        episode: id of an episode that was shown it first; null if that is not stored.
    """

    version: str
    name: str
    step: int
    env_steps: float | None = None
    again: tuple[int, ...] = ()
    says: tuple[str, ...] = ()
    left: int = 0
    episode: str | None = None


class ArmNotes(Shape):
    """What was noted about an arm's episodes; empty where nothing was.

    Attributes:
        arm: whose.
        kinds: kinds of notes that carry labels.
        interfaces: those that it was shown through, in the order in which they came.
        left: interfaces that are left out, as there are too many: those in the middle.
    """

    arm: str
    kinds: tuple[KindOfNotes, ...] = ()
    interfaces: tuple[InterfaceRow, ...] = ()
    left: int = 0


class NoteView(Shape):
    """A finding about an episode of training.

    Attributes:
        kind: which study wrote it.
        label: a word of the study's own list, or "".
        failure: whether the label tells of a failure.
        step: the step of the episode that it is about, from 1; null if it is about a turn or about
            the whole episode.
        turn: the user's turn that it is about, from 1; null if it is not about a turn.
        turns: how many turns there are; null likewise.
        value: its number.
        source: who found it: ``rule``, ``replay`` or ``model``.
    """

    kind: str
    label: str
    failure: bool
    step: int | None = None
    turn: int | None = None
    turns: int | None = None
    value: float = 0.0
    source: str = "rule"
