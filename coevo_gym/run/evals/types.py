"""What a task that is evaluated is about, so that success can be told by its type."""

from __future__ import annotations

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.task import Task
from coevo_gym.store.evaluated import EvaluatedTask

SUBSET = "subset"
"""The kind of a tag that holds the benchmark's own name for a part of its tasks."""


def types_of(benchmark: Benchmark, task: Task) -> tuple[str, ...]:
    """The types of a task as ``"kind:value"`` each: its tags, and the part it belongs to."""
    tags = getattr(benchmark, "tags", None)
    found = set(tags(task) if tags is not None else ())
    if task.subset:
        found.add(f"{SUBSET}:{task.subset}")
    return tuple(sorted(found))


def evaluated_task(benchmark: Benchmark, task: Task) -> EvaluatedTask:
    """What is kept of a task that is evaluated."""
    return EvaluatedTask(
        id=task.id,
        name=task.name,
        split=str(task.split),
        subset=task.subset,
        scenario=task.scenario,
        instruction=task.instruction,
        tags=types_of(benchmark, task),
    )
