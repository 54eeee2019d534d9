"""Notes by studies about an arm's episodes, and the interfaces used in these episodes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coevo_gym.view.shapes.base import Shape, TaskBrief

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
