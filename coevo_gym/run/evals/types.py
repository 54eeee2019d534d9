"""What a task that is evaluated is about, so that success can be told by its type."""

from __future__ import annotations

from coevo_gym.core.task import Task
from coevo_gym.envs.tags import tags_from, tags_of
from coevo_gym.store.evaluated import EvaluatedTask

SUBSET = "subset"
"""The kind of a tag that holds the benchmark's own name for a part of its tasks."""


def types_of(task: Task) -> tuple[str, ...]:
    """The types of a task as ``"kind:value"`` each: its tags, and the part it belongs to."""
    part = tags_from([(SUBSET, task.subset)])
    return tuple(sorted({*tags_of(task), *part}))


def evaluated_task(task: Task) -> EvaluatedTask:
    """What is kept of a task that is evaluated."""
    return EvaluatedTask(
        id=task.id,
        name=task.name,
        split=str(task.split),
        subset=task.subset,
        scenario=task.scenario,
        instruction=task.instruction,
        tags=types_of(task),
    )
