"""The benchmark, with the interface that curricula and trainers use."""

from __future__ import annotations

from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Step
from coevo_gym.envs.folder import ProposableFolder
from coevo_gym.envs.tags import tags_from

from . import builder, proposals, tasks
from .choices import choices


class NewbenchBenchmark(ProposableFolder):
    """The Newbench benchmark, implemented by the modules in this folder."""

    name = "newbench"
    env_id = "Newbench-v0"
    subsets: tuple[str, ...] = ()

    def symbol(self, step: Step) -> str:
        """Return the verb of the action (open, take, put or done), or "!" if it had no effect."""
        return "!" if step.error_kind else next(iter(step.calls), "")

    def tags(self, task: Task | Draft) -> tuple[str, ...]:
        """Return a task's topics: its room, and the thing and box in its instruction."""
        words = task.instruction.strip(".").replace(",", "").split()
        things = [("thing", word) for word in words if word in tasks.THINGS]
        boxes = [("box", word) for word in words if word in tasks.BOXES]
        return tags_from([("room", task.scenario), *things, *boxes])


BENCHMARK = NewbenchBenchmark(tasks, builder, choices, proposals)
