"""The ceiling: reference solutions, played."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coevo_gym.agents.scripted import ScriptedAgent
from coevo_gym.core.task import Task
from coevo_gym.episodes.evaluation import Evaluation, evaluate_each
from coevo_gym.episodes.pool import EnvPool


def evaluate_references(
    tasks: Sequence[Task],
    envs: EnvPool,
    *,
    seed: int = 0,
    on_done: Callable[[int], None] | None = None,
) -> Evaluation:
    """Play each task's own solution, the ceiling of the success rate.

    Arguments and errors are those of :func:`~coevo_gym.episodes.evaluation.evaluate`.
    """
    parts = [(ScriptedAgent(task.solution, after=""), [task]) for task in tasks]
    return evaluate_each(parts, envs, seed=seed, on_done=on_done)
