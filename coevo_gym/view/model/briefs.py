"""Small parts shared by several responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coevo_gym.core.task import Task
from coevo_gym.view.index.filling import brief
from coevo_gym.view.refusals import NotFound
from coevo_gym.view.shapes.base import TaskBrief
from coevo_gym.view.shelf import ShownRun


def brief_of(task: Task) -> TaskBrief:
    """Return a short description of a task."""
    return TaskBrief(
        id=task.id, name=task.name, instruction=brief(task.instruction), origin=task.origin
    )


def brief_of_row(row: Mapping[str, Any]) -> TaskBrief:
    """Return a short description of an index row's task; the name is "" if the task is gone."""
    return TaskBrief(
        id=row["task_id"],
        name=row["name"] or "",
        instruction=row["instruction"] or "",
        origin=row["origin"] or "",
    )


def brief_of_id(run: ShownRun, id: str) -> TaskBrief:
    """Return a short description of the task with an id; only the id if the run lacks the task."""
    found = run.index.rows("SELECT name, instruction, origin FROM tasks WHERE id = ?", id)
    name, instruction, origin = found[0] if found else (None, None, None)
    return brief_of_row({"task_id": id, "name": name, "instruction": instruction, "origin": origin})


def checked_arm(run: ShownRun, arm: str) -> str:
    """Return the name of an arm after checking that the run has it.

    Raises:
        NotFound: if the run has no such arm.
    """
    arms = run.config.arms
    if arm not in arms:
        raise NotFound(f"{run.id} has no arm {arm[:60]!r}. Its arms: {', '.join(arms)}.")
    return arm
