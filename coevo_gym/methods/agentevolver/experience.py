"""Experiences: lessons of past rollouts, in words, and their usefulness."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.evolution import digest
from coevo_gym.core.notes import Note
from coevo_gym.core.task import FrozenDict, FrozenModel, Task, Text
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.curricula.gates.sources import stands_in

EXPERIENCE = "experience"
"""Kind of the notes that hold a new experience."""
EXPERIENCE_USE = "experience_use"
"""Kind of the notes that compare the rollouts that were told an experience with the others."""

OFFERED, REFUSED = "offered", "refused"
"""Labels of these notes: an experience, or an experience that gives its task away and is never
told."""

MAX_QUESTIONS = 256
"""Maximum questions per step of the learner of each kind; the paper's batches have 256 episodes."""

Source = Literal["pair", "success", "failure", "rule"]
"""Origins of experiences: a success and a failure, one of the two, or a rule."""


class Experience(FrozenModel):
    """A piece of advice.

    Attributes:
        when_to_use: the tasks that it is for, in words; compared with instructions.
        content: advice on actions to take or to avoid.
        task_id: id of its task of origin.
        source: its origin.
    """

    when_to_use: Text = Field(min_length=1)
    content: Text = Field(min_length=1)
    task_id: str
    source: Source

    @property
    def id(self) -> str:
        """Return the hash of both texts."""
        return digest([self.when_to_use, self.content])


class Usefulness(NamedTuple):
    """The difference in success between rollouts that are told an experience and others.

    Attributes:
        utility: moving average of the difference of success rates, in [-1, 1]; 0 until measured.
        groups: groups in which some rollouts were told the experience and some were told nothing.

    Source: ours; AgentEvolver (arXiv 2511.10395) asks a model whether an experience is valid.
    """

    utility: float = 0.0
    groups: int = 0

    def after(self, difference: float, beta: float) -> Usefulness:
        """Return the usefulness after another group.

        Args:
            difference: mean success of the rollouts that were told the experience, minus that of
                the others.
            beta: weight of the new difference; the first one counts in full.
        """
        kept = (1.0 - beta) * self.utility + beta * difference if self.groups else difference
        return Usefulness(kept, self.groups + 1)

    def harms(self, least_groups: int) -> bool:
        """Return True if the utility is below 0 after at least ``least_groups`` groups."""
        return self.groups >= least_groups and self.utility < 0.0


UNMEASURED = Usefulness()
"""The usefulness of a new experience."""


_DIGITS = 4
"""Number of digits from which a number is a value of its task rather than a count of steps."""
_ACTIONS = 3
"""Number of consecutive actions of a reference that give it away."""
_TOKEN = re.compile(r"\w(?:[\w.,:@/+-]*\w)?")


def leak(text: str, benchmark: Benchmark, task: Task, trajectories: Sequence[Trajectory]) -> str:
    """Return the reason why a text gives a task away, in words; "" if it does not.

    A text does so if it contains an answer of the task; a value with at least 4 digits or an id (a
    word with letters and digits) that the rollouts have shown and the instruction has not; or 3
    actions of a reference in a row, or all of a shorter one.

    Args:
        text: the text of an experience.
        benchmark: the benchmark, which knows the answers.
        task: the task of its rollouts.
        trajectories: the rollouts behind the experience.
    """
    for answer in benchmark.evidence(task).answers:
        if stands_in(text, answer):
            return f"it holds the answer {answer!r}"
    shown = _values(
        part
        for trajectory in trajectories
        for part in (
            *trajectory.actions,
            *(step.observation for step in trajectory.steps),
            trajectory.last_observation,
        )
    )
    for value in sorted(_values([text]) & (shown - _values([task.instruction]))):
        return f"it holds the value {value!r} of a rollout"
    for reference in (task.solution, benchmark.demonstration(task)):
        if _quotes(text, reference):
            return "it holds actions of the reference"
    return ""


def experience_note(
    benchmark: Benchmark,
    group: Group,
    index: int,
    made: Experience,
    source: Literal["rule", "model"],
) -> Note:
    """Return the note that offers an experience, or refuses one that gives its task away.

    Args:
        benchmark: the benchmark, which knows the answers.
        group: the group of its rollouts.
        index: position of the first of them in the group.
        made: the experience.
        source: its author.
    """
    texts = f"{made.when_to_use}\n{made.content}"
    why = leak(texts, benchmark, group.task, group.trajectories)
    return Note(
        kind=EXPERIENCE,
        task_id=group.task.id,
        group_id=group.id,
        index=index,
        label=REFUSED if why else OFFERED,
        evidence=FrozenDict(why=why) if why else FrozenDict(made.model_dump(mode="json")),
        source=source,
    )


def _values(texts: Iterable[str]) -> set[str]:
    """Return the values and the ids in some texts, in lower case."""
    found = set()
    for text in texts:
        for token in _TOKEN.findall(text.casefold()):
            n_digits = sum(map(str.isdigit, token))
            if n_digits >= _DIGITS or (n_digits and any(map(str.isalpha, token))):
                found.add(token)
    return found


def _quotes(text: str, reference: Sequence[str]) -> bool:
    """Return True if a text contains enough consecutive actions of a reference."""
    n = min(_ACTIONS, len(reference))
    held = [stands_in(text, action) for action in reference]
    return n > 0 and any(all(held[at : at + n]) for at in range(len(held) - n + 1))
