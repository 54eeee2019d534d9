"""What a task is about: its scene, the kind of its goal, and what is to be handled."""

from __future__ import annotations

from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Task
from coevo_gym.envs.alfworld.goals import CLEAN, COOL, HEAT, LOOK, PICK, TWO, Goal
from coevo_gym.envs.alfworld.tasks import goal_of
from coevo_gym.envs.alfworld.world import ALFWorldWorld
from coevo_gym.envs.tags import tags_from

GOALS = {PICK: "pick", LOOK: "look", CLEAN: "clean", HEAT: "heat", COOL: "cool", TWO: "two"}
"""The kinds of goal in one word."""


def tags_of(task: Task | Draft) -> tuple[str, ...]:
    """``scene:``, ``goal:`` and ``object:``.

    Raises:
        BenchmarkNotInstalled: if it is an official game, and the games are not at hand.
        DataError: if the games at hand are not those that the task was made with.
        TaskError: if there is no such game.
    """
    world = task.world
    assert isinstance(world, ALFWorldWorld)
    pairs = [("scene", task.scenario)]
    if world.goal != "nothing":
        pairs += _pairs(goal_of(world))
    return tags_from(pairs)


def goal_tags(goal: Goal) -> tuple[str, ...]:
    """The tags of a goal, in whatever scene."""
    return tags_from(_pairs(goal))


def _pairs(goal: Goal) -> list[tuple[str, str]]:
    return [("goal", GOALS[goal.kind]), ("object", goal.object.lower())]
