"""Experiences: written lessons from past rollouts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.evaluation_mark import refuse_marked
from coevo_gym.core.evolution import digest
from coevo_gym.core.notes import Note
from coevo_gym.core.task import FrozenDict, FrozenModel, Task, Text
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.curricula.gates.sources import contains_phrase

EXPERIENCE = "experience"
"""The kind of note that contains a new experience."""
EXPERIENCE_USE = "experience_use"
"""The kind of note that compares rollouts with and without an experience."""

OFFERED, REFUSED = "offered", "refused"
"""Labels of notes with a new experience, which is refused if it reveals the solution of a task."""

MAX_QUESTIONS = 256
"""Maximum model queries of each kind per learner step; the paper's batches have 256 episodes."""

Source = Literal["pair", "success", "failure", "rule"]
"""Origins of experiences: a success and a failure, only one of the two, or a rule."""


class Experience(FrozenModel):
    """A piece of advice learned from past rollouts.

    Attributes:
        when_to_use: description of the tasks that the advice is for, compared with instructions.
        content: the advice, on actions to take or to avoid.
        task_id: id of the task that the experience comes from.
        source: origin of the experience.

    Raises:
        SplitLeakError: if a text is an exported episode on a held-out task.
    """

    when_to_use: Text = Field(min_length=1)
    content: Text = Field(min_length=1)
    task_id: str
    source: Source

    @model_validator(mode="after")
    def _refuse_held_out(self) -> Experience:
        refuse_marked((self.when_to_use, self.content), "become an experience", "A text")
        return self

    @property
    def id(self) -> str:
        """Return a hash of the experience's ``when_to_use`` and ``content``."""
        return digest([self.when_to_use, self.content])


class Usefulness(NamedTuple):
    """The difference in success rate between rollouts with and without an experience.

    Attributes:
        utility: moving average of the difference in success rates, in [-1, 1]; 0 until measured.
        groups: number of groups in which some rollouts got the experience and some got none.
        mean: mean difference over all of these groups.
        squares: sum of the squared distances of these differences from their mean.

    Source: ours; AgentEvolver (arXiv 2511.10395) asks a model if an experience is valid. Mean and
    squares are updated as by Welford (Technometrics 4, 1962).
    """

    utility: float = 0.0
    groups: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def update(self, difference: float, beta: float) -> Usefulness:
        """Return the experience's usefulness after adding the results of another group.

        Args:
            difference: mean success of rollouts with the experience, minus the mean success of
                rollouts without experiences.
            beta: weight of the new difference; the first difference counts in full.
        """
        utility = (1.0 - beta) * self.utility + beta * difference if self.groups else difference
        groups = self.groups + 1
        mean = self.mean + (difference - self.mean) / groups
        squares = self.squares + (difference - self.mean) * (difference - mean)
        return Usefulness(utility, groups, mean, squares)

    def upper_bound(self, errors: float) -> float:
        """Return the mean difference plus ``errors`` standard errors; inf for fewer than 2 groups.

        Example:
            >>> use = Usefulness().update(-1.0, 0.2).update(0.0, 0.2)
            >>> use.upper_bound(0.0), use.upper_bound(2.0)
            (-0.5, 0.5)
        """
        if self.groups < 2:
            return math.inf
        return self.mean + errors * math.sqrt(self.squares / (self.groups - 1) / self.groups)


@dataclass(frozen=True)
class DropRule:
    """The rule that decides when an experience is harmful, and how long it stays out of the pool.

    A moving average of noisy differences falls below 0 sooner or later, even for a useful
    experience. The rule therefore uses an upper confidence bound of the mean over all groups.

    Attributes:
        groups: minimum number of groups before an experience may be dropped.
        errors: number of standard errors by which the mean must lie below 0.
        rest_steps: number of learner steps after which a dropped experience returns to the pool,
            because the policy has changed; 0 for never.

    Source: ours; AgentEvolver does not drop experiences.
    """

    groups: int = 16
    errors: float = 2.5
    rest_steps: int = 50

    def drops(self, use: Usefulness) -> bool:
        """Return True if an experience with this usefulness must be dropped."""
        return use.groups >= self.groups and use.upper_bound(self.errors) < 0.0


DROP_RULE = DropRule()
"""The default rule for dropping harmful experiences."""
UNMEASURED = Usefulness()
"""The usefulness of a new experience."""


_DIGITS = 4
"""Minimum number of digits for a number to be a task's value rather than a count of steps."""
_ACTIONS = 3
"""Number of consecutive actions that reveal a reference solution."""
_TOKEN = re.compile(r"\w(?:[\w.,:@/+-]*\w)?")


def describe_leak(
    text: str, benchmark: Benchmark, task: Task, trajectories: Sequence[Trajectory]
) -> str:
    """Return an explanation of how the text reveals the task's solution, or "" if it does not.

    A text reveals a solution if it contains one of the task's answers; a value with at least 4
    digits or an id (a word with letters and digits) that appears in the rollouts but not in the
    instruction; or 3 consecutive actions of a reference solution (all actions if it is shorter).
    The benchmark provides the answers.
    """
    for answer in benchmark.evidence(task).answers:
        if contains_phrase(text, answer):
            return f"it contains the answer {answer!r}"
    in_rollouts = _ids_and_numbers(
        part
        for trajectory in trajectories
        for part in (
            *trajectory.actions,
            *(step.observation for step in trajectory.steps),
            trajectory.last_observation,
        )
    )
    for value in sorted(
        _ids_and_numbers([text]) & (in_rollouts - _ids_and_numbers([task.instruction]))
    ):
        return f"it contains the value {value!r} of a rollout"
    for reference in (task.solution, benchmark.demonstration(task)):
        if _quotes_solution(text, reference):
            return "it contains actions of the reference"
    return ""


def make_experience_note(
    benchmark: Benchmark,
    group: Group,
    index: int,
    experience: Experience,
    source: Literal["rule", "model"],
) -> Note:
    """Create a note that offers an experience, or refuses it if it reveals a solution.

    ``index`` is the position of the first rollout that the experience is based on, and ``source``
    the author of the experience.
    """
    texts = f"{experience.when_to_use}\n{experience.content}"
    why = describe_leak(texts, benchmark, group.task, group.trajectories)
    return Note(
        kind=EXPERIENCE,
        task_id=group.task.id,
        group_id=group.id,
        index=index,
        label=REFUSED if why else OFFERED,
        evidence=FrozenDict(why=why) if why else FrozenDict(experience.model_dump(mode="json")),
        source=source,
    )


def _ids_and_numbers(texts: Iterable[str]) -> set[str]:
    """Return the lower-cased ids and long numbers that occur in the given texts."""
    values = set()
    for text in texts:
        for token in _TOKEN.findall(text.casefold()):
            n_digits = sum(map(str.isdigit, token))
            if n_digits >= _DIGITS or (n_digits and any(map(str.isalpha, token))):
                values.add(token)
    return values


def _quotes_solution(text: str, reference: Sequence[str]) -> bool:
    """Return True if the text quotes several consecutive actions of the reference solution."""
    n = min(_ACTIONS, len(reference))
    matches = [contains_phrase(text, action) for action in reference]
    return n > 0 and any(all(matches[at : at + n]) for at in range(len(matches) - n + 1))
