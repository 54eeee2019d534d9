"""What studies noted about an arm's episodes, and the interfaces that these were shown through."""

from __future__ import annotations

from pydantic import Field

from coevo_gym.web.view.shapes.base import Shape
from coevo_gym.web.view.shapes.brief import TaskBrief


class NotedEpisode(Shape):
    """A stored episode that has a note.

    Attributes:
        id: what paths call it.
        step: step of the learner.
    """

    id: str
    step: int


class NotedTask(Shape):
    """A task that notes are about, or that they name.

    Attributes:
        task: the task.
        n: how many notes.
        step: step of the learner of the latest one.
    """

    task: TaskBrief
    n: int
    step: int


class LabelRow(Shape):
    """How often an arm's notes of a kind carry a label.

    Attributes:
        label: the label.
        failure: whether it tells of a failure.
        total: notes that carry it.
        counts: the same in each part of the steps.
        latest: a few of the latest stored episodes that have one, the latest first.
        n_tasks: tasks that these notes are about; where they name others, those.
        tasks: some of these tasks, with the latest notes first.
    """

    label: str
    failure: bool
    total: int
    counts: tuple[int, ...]
    latest: tuple[NotedEpisode, ...] = ()
    n_tasks: int = 0
    tasks: tuple[NotedTask, ...] = ()


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


class NumbersOfNotes(Shape):
    """The numbers of an arm's notes about steps of episodes, of one kind, over its steps.

    The arrays are equally long: each has one number for each step of the learner.

    Attributes:
        kind: which study wrote them.
        step: step of the learner.
        n: notes of that step.
        value: their mean value; empty where no note has another value than 0.
        likeness: how alike what was expected next is to what came, as a mean in [0, 1]; empty
            where nothing was expected.
        floor: the same of the observation that was there before the step; empty likewise.
    """

    kind: str
    step: tuple[int, ...]
    n: tuple[int, ...]
    value: tuple[float, ...] = ()
    likeness: tuple[float | None, ...] = ()
    floor: tuple[float | None, ...] = ()


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
        numbers: kinds of notes about steps that carry numbers.
        interfaces: those that it was shown through, in the order in which they came.
        left: interfaces that are left out, as there are too many: those in the middle.
    """

    arm: str
    kinds: tuple[KindOfNotes, ...] = ()
    numbers: tuple[NumbersOfNotes, ...] = ()
    interfaces: tuple[InterfaceRow, ...] = ()
    left: int = 0


class Expected(Shape):
    """What was expected to be observed after a step.

    Attributes:
        text: the text, which may be cut; "" if there is none, null if exactly that came.
        likeness: how alike it is to what came, in [0, 1]; null if that was not noted.
    """

    text: str | None
    likeness: float | None = None


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
        expected: what was expected after the step, the next observation first.
        floor: how alike the observations before and after the step are; null if that was not
            noted.
        says: texts of its evidence, by name.
    """

    kind: str
    label: str
    failure: bool
    step: int | None = None
    turn: int | None = None
    turns: int | None = None
    value: float = 0.0
    source: str = "rule"
    expected: tuple[Expected, ...] = ()
    floor: float | None = None
    says: dict[str, str] = Field(default_factory=dict)
