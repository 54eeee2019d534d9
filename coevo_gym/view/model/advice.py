"""The advice stored in an arm's memories, and the advice used in episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from pydantic import Field

from coevo_gym.core.advice import AdviceOrigin, AdviceState, advised
from coevo_gym.core.task import Split
from coevo_gym.view.reader import StoredAdvice, ViewReader
from coevo_gym.view.rows import Shape, TaskBrief, cut
from coevo_gym.view.shelf import ShownRun, told_as_damaged


class AdviceText(Shape):
    """The text of a piece of advice.

    Attributes:
        id: id of the advice.
        texts: texts of the advice by name, possibly truncated.
    """

    id: str
    texts: dict[str, str] = Field(default_factory=dict)


class AdviceRow(AdviceText):
    """A piece of advice, with its origin and its measured usefulness.

    Attributes:
        memory: name of the memory that contains or contained the advice.
        source: author or reason, as named by the memory.
        task: task of the rollout that the advice comes from.
        episode: id of that rollout, used in paths; null if it is not stored.
        step: learner step in which the memory added the advice.
        held: true if the memory still contains the advice.
        why: reason for dropping the advice, or "".
        utility: latest usefulness in [-1, 1]; null if not measured yet.
        groups: number of groups that the usefulness is measured on.
        steps: learner steps in which the usefulness was measured.
        utilities: usefulness at the end of each of these steps.
    """

    memory: str
    source: str = ""
    task: TaskBrief
    episode: str | None = None
    step: int
    held: bool = True
    why: str = ""
    utility: float | None = None
    groups: int = 0
    steps: tuple[int, ...] = ()
    utilities: tuple[float, ...] = ()


class ArmAdvice(Shape):
    """The advice in an arm's memories.

    Attributes:
        arm: name of the arm.
        held: number of pieces of advice in the memories.
        dropped: number of dropped pieces of advice by reason.
        rows: advice in a memory first, then dropped advice; both by utility, unmeasured last.
        left: number of rows omitted because there are too many.
    """

    arm: str
    held: int = 0
    dropped: dict[str, int] = Field(default_factory=dict)
    rows: tuple[AdviceRow, ...] = ()
    left: int = 0


MOST_ADVICE = 300
"""Maximum number of rows for an arm."""
MOST_CHARACTERS = 2_000
"""Maximum length of a string; longer strings are truncated."""


class _Story(NamedTuple):
    """A piece of advice and the history of its changes."""

    memory: str
    step: int
    origin: AdviceOrigin
    states: tuple[tuple[int, AdviceState], ...]

    @property
    def last(self) -> AdviceState:
        return self.states[-1][1]


def arm_advice(run: ShownRun, arm: str) -> ArmAdvice:
    """Return the advice in an arm's memories.

    Raises:
        NotFound: if the run has no such arm.
        Damaged: if the run cannot be read.
    """
    run.require_arm(arm)
    if not run.folder.database.is_file():
        return ArmAdvice(arm=arm)  # nothing is stored yet
    with told_as_damaged():
        run.index.refresh()
        reader = run.reader
        stories = sorted(_stories(reader, arm), key=_order)
        shown = [_row(run, reader, arm, story) for story in stories[:MOST_ADVICE]]
    return ArmAdvice(
        arm=arm,
        held=sum(story.last.held for story in stories),
        dropped=Counter(story.last.why for story in stories if not story.last.held),
        rows=tuple(shown),
        left=len(stories) - len(shown),
    )


def advice_told(
    reader: ViewReader, arm: str, cue_ids: Sequence[str], split: str
) -> tuple[AdviceText, ...]:
    """Return the advice used in a training episode. Return () for any other episode.

    Args:
        reader: reader of the run's database.
        arm: name of the arm.
        cue_ids: ids of the episode's cues.
        split: split of the episode's task.
    """
    ids = advised(cue_ids)
    if split != Split.TRAIN or not ids:
        return ()
    stories = {story.last.id: story for story in _stories(reader, arm, ids)}
    return tuple(AdviceText(id=id, texts=_texts(stories[id].origin)) for id in ids if id in stories)


def _stories(reader: ViewReader, arm: str, ids: Collection[str] | None = None) -> list[_Story]:
    """Return the advice that an arm learned from training tasks. ``ids`` limits the result."""
    found: dict[tuple[str, str], list[StoredAdvice]] = {}
    for one in reader.advice(arm):
        if ids is not None and one.state.id not in ids:
            continue
        found.setdefault((one.memory, one.state.id), []).append(one)
    stories = []
    for (memory, _), changes in found.items():
        first = next((one for one in changes if one.state.origin is not None), None)
        if first is None or first.state.origin is None:
            continue  # taken in before the run stored advice
        task = reader.task(first.state.origin.task_id)
        if task is None or task.split is not Split.TRAIN:
            continue
        states = tuple((one.step, one.state) for one in changes)
        stories.append(_Story(memory, first.step, first.state.origin, states))
    return stories


def _order(story: _Story) -> tuple[bool, float, int]:
    utility = story.last.utility
    return (not story.last.held, 2.0 if utility is None else -utility, story.step)


def _row(run: ShownRun, reader: ViewReader, arm: str, story: _Story) -> AdviceRow:
    origin, last = story.origin, story.last
    stored = reader.stores(arm, origin.group_id, origin.index)
    before, measured = 0, list[tuple[int, float]]()
    for step, state in story.states:
        if state.utility is not None and state.groups > before:
            measured.append((step, state.utility))
        before = state.groups
    return AdviceRow(
        id=last.id,
        texts=_texts(origin),
        memory=story.memory,
        source=origin.source,
        task=run.brief_of(origin.task_id),
        episode=f"{arm}.{origin.group_id}.{origin.index}" if stored else None,
        step=story.step,
        held=last.held,
        why=last.why,
        utility=last.utility,
        groups=last.groups,
        steps=tuple(step for step, _ in measured),
        utilities=tuple(utility for _, utility in measured),
    )


def _texts(origin: AdviceOrigin) -> dict[str, str]:
    return {name: cut(str(text), MOST_CHARACTERS) for name, text in origin.texts.items()}
