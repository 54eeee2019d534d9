"""A check for texts that give a task away, and so must not become experiences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.notes import Note
from coevo_gym.core.task import FrozenDict, Task
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.curricula.gates.told import stands_in
from coevo_gym.methods.agentevolver.experience import EXPERIENCE, OFFERED, REFUSED, Experience

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
