"""The ceiling: reference solutions, played."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from coevo_gym.agents.scripted import ScriptedAgent
from coevo_gym.core.task import Task
from coevo_gym.episodes.evaluation import Parts


def references(sample: int, done: int, tasks: Sequence[Task]) -> AbstractContextManager[Parts]:
    """Play each task's own solution, the ceiling of the success rate.

    Pass it to :func:`~coevo_gym.episodes.evaluation.evaluate` in the place of an agent.
    """
    return nullcontext((ScriptedAgent(task.solution, after=""), [task]) for task in tasks)
