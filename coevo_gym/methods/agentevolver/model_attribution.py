"""A study in which a language model labels the steps of episodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from coevo_gym.core.inquiry import Analyst, Inquiry
from coevo_gym.core.notes import Findings, Note
from coevo_gym.core.seams import Sampling
from coevo_gym.core.spend import Usage
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.curricula.explore.summarise import retraced
from coevo_gym.methods.agentevolver.credit import ATTRIBUTION, BAD, GOOD, NO_LABEL
from coevo_gym.methods.agentevolver.experience import MAX_QUESTIONS
from coevo_gym.methods.agentevolver.replays import (
    EXAMINED,
    NO_ANSWER,
    Judged,
    affordable,
    unlabelled,
)
from coevo_gym.methods.agentevolver.study import label_notes
from coevo_gym.trainers.credit import Outcome

PROMPT = "agentevolver/attribute"
"""Name of the prompt that asks for the labels of an episode's steps."""
Skip = Literal["nothing", "flat"]
"""Groups that are not asked about: none, or those whose episodes all have the same outcome."""

_STEP_CHARS = 2_000
"""Maximum characters of an action, and of an observation."""
_EPISODE_CHARS = 60_000
"""Maximum characters of an episode's steps; steps in the middle of a longer one are not shown."""
_NUMBER = re.compile(r"\s*(?:step )?(\d{1,6})\s*")
_NAMES = {"good": GOOD, "bad": BAD}


class StepLabels(BaseModel):
    """A model's labels for the steps of an episode.

    Attributes:
        steps: an object for each step, with ``step``, its number from 1, and ``label``.
    """

    steps: list[Any] = Field(min_length=1)


class ModelAttribution:
    """A study in which a model labels the steps of each episode that was not lost.

    The model is asked once about each episode. It sees the task, the steps, and if the episode
    succeeded, but neither goal, solution nor grader's report. A step that it does not label, labels
    in other words than ``good`` and ``bad``, or labels both ways has no label; labels of steps that
    it was not shown are ignored. The notes are those of
    :class:`~coevo_gym.methods.agentevolver.study.Attribution`; a trajectory without a usable
    answer has the label ``no_answer``.

    Args:
        analyst: returns the model that is asked.
        outcome: the reward of a trajectory.
        skip: groups that are not asked about.
        most: maximum trajectories per learner's step to ask about; the largest groups beyond that
            are left out as a whole, because labels are compared within their group.
        kind: kind of the notes.

    Source: AgentEvolver (arXiv 2511.10395), 5.1; the caps and the answer's form are ours.
    """

    def __init__(
        self,
        analyst: Callable[[], Analyst],
        *,
        outcome: Outcome | None = None,
        skip: Skip = "nothing",
        most: int = MAX_QUESTIONS,
        kind: str = ATTRIBUTION,
    ) -> None:
        self.kind = kind
        self._analyst, self._outcome = analyst, outcome or Outcome()
        self._skip, self._most = skip, most

    def examine(self, groups: Sequence[Group]) -> Findings:
        """Label the steps of the groups; see :class:`~coevo_gym.core.seams.Study`."""
        kept = [
            [(index, t) for index, t in enumerate(group.trajectories) if not t.end_reason.lost]
            for group in groups
        ]
        sizes = [0 if self._skips(each) else len(each) for each in kept]
        fits = affordable(sizes, self._most)
        asked = {
            (group.id, index): _Shown(group.task.instruction, trajectory)
            for group, each, size, asks in zip(groups, kept, sizes, fits, strict=True)
            for index, trajectory in each
            if size and asks and trajectory.steps
        }
        answers, usage = self._ask(groups, asked)
        notes: list[Note] = []
        for group, each in zip(groups, kept, strict=True):
            for index, trajectory in each:
                labels = answers.get((group.id, index), unlabelled(trajectory))
                outcome = self._outcome(trajectory)
                notes += label_notes(self.kind, group, index, outcome, labels, "model")
        return Findings(tuple(notes), usage)

    def _skips(self, kept: Sequence[tuple[int, Trajectory]]) -> bool:
        outcomes = {self._outcome(trajectory) for _, trajectory in kept}
        return self._skip == "flat" and len(outcomes) < 2

    def _ask(
        self, groups: Sequence[Group], asked: Mapping[tuple[str, int], _Shown]
    ) -> tuple[Mapping[tuple[str, int], Judged], Mapping[str, Usage]]:
        """Return the labels by group and index, and their cost."""
        if not asked:
            return {}, FrozenDict()
        analyst = self._analyst()
        with analyst.studying(self.kind, groups) as spent:
            answers = analyst.advisor.ask(
                [each.inquiry(self.kind, analyst.sampling) for each in asked.values()]
            )
            usage = spent()
        said = zip(asked.items(), answers, strict=True)
        return {key: each.judged(answer.value) for (key, each), answer in said}, usage


class _Shown:
    """An episode, and the steps of it that the model is shown."""

    def __init__(self, instruction: str, trajectory: Trajectory) -> None:
        self._instruction, self._trajectory = instruction, trajectory
        self._numbers: frozenset[int] = frozenset()

    def inquiry(self, purpose: str, sampling: Sampling) -> Inquiry[StepLabels]:
        return Inquiry(
            prompt=PROMPT,
            schema=StepLabels,
            inputs=self._inputs(_EPISODE_CHARS),
            purpose=purpose,
            sampling=sampling,
            shorten=lambda: self._inputs(_EPISODE_CHARS // 4),
        )

    def _inputs(self, cap: int) -> Mapping[str, Any]:
        shown = retraced(self._trajectory, cap, max_text=_STEP_CHARS)
        self._numbers = frozenset(step["number"] for step in shown["steps"])
        return {
            "instruction": self._instruction,
            **shown,
            "success": self._trajectory.success,
        }

    def judged(self, said: StepLabels | None) -> Judged:
        if said is None:
            return unlabelled(self._trajectory, NO_ANSWER)
        labels = labels_in(said.steps, len(self._trajectory.steps))
        return Judged(
            EXAMINED,
            [
                label if number in self._numbers else NO_LABEL
                for number, label in enumerate(labels, start=1)
            ],
        )


def labels_in(lines: Sequence[Any], n_steps: int) -> list[int]:
    """Return the label of each step from the lines of an answer.

    Args:
        lines: objects with ``step``, counted from 1, and ``label``; anything else is ignored.
        n_steps: number of steps of the episode.

    Returns:
        (n_steps,) 1, -1, or 0 for a step without a line, or with lines that are unusable or
        contradict each other.

    Example:
        >>> labels_in([{"step": 1, "label": "Good"}, {"step": 9, "label": "bad"}], 2)
        [1, 0]
    """
    found: dict[int, set[int]] = {}
    for line in lines:
        said = line if isinstance(line, Mapping) else {}
        if number := _NUMBER.fullmatch(str(said.get("step"))):
            found.setdefault(int(number[1]), set()).add(_label(said.get("label")))
    return [_agreed(found.get(step, ())) for step in range(1, n_steps + 1)]


def _label(said: Any) -> int:
    return _NAMES.get(said.strip().lower(), NO_LABEL) if isinstance(said, str) else NO_LABEL


def _agreed(labels: Collection[int]) -> int:
    return next(iter(labels)) if len(labels) == 1 else NO_LABEL
