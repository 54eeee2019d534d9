"""Tags of an ALFWorld task: its scene, its kind of goal, and the object to handle."""

from __future__ import annotations

from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Task
from coevo_gym.envs.alfworld.goals import CLEAN, COOL, HEAT, LOOK, PICK, TWO, RoomGoal
from coevo_gym.envs.alfworld.tasks import goal_of
from coevo_gym.envs.alfworld.world import ALFWorldWorld
from coevo_gym.envs.tags import tags_from

GOALS = {PICK: "pick", LOOK: "look", CLEAN: "clean", HEAT: "heat", COOL: "cool", TWO: "two"}
"""A one-word name for each kind of goal."""


def tags_of(task: Task | Draft) -> tuple[str, ...]:
    """Return the tags ``scene:``, ``goal:`` and ``object:`` of a task or a draft.

    Raises:
        BenchmarkNotInstalled: if the task is from an official game that is not installed.
        DataError: if the installed games are not the games that the task was made with.
        TaskError: if the game is unknown.
    """
    world = task.world
    assert isinstance(world, ALFWorldWorld)
    pairs = [("scene", task.scenario)]
    if world.goal != "nothing":
        pairs += _pairs(goal_of(world))
    return tags_from(pairs)


def goal_tags(goal: RoomGoal) -> tuple[str, ...]:
    """Return the tags of a goal, without its scene."""
    return tags_from(_pairs(goal))


def _pairs(goal: RoomGoal) -> list[tuple[str, str]]:
    return [("goal", GOALS[goal.kind]), ("object", goal.object.lower())]
