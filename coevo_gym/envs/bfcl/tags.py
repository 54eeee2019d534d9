"""What a conversation is about: the backends that are offered, and how often the user speaks."""

from __future__ import annotations

from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Task
from coevo_gym.envs.bfcl.world import BFCLWorld
from coevo_gym.envs.tags import asks_nothing, tags_from

FEW = 3
"""Most turns that are few; one is a kind of its own."""


def tags_of(task: Task | Draft) -> tuple[str, ...]:
    """``api:`` for each backend, and ``turns:``, one of ``one``, ``few`` and ``many``.

    The backends are those that the agent is offered, not those that the reference calls: what it
    calls is for the agent to find out.
    """
    world = task.world
    assert isinstance(world, BFCLWorld)
    pairs = [("api", name) for name in world.classes]
    if not asks_nothing(task):
        n = len(world.turns)
        pairs.append(("turns", "one" if n == 1 else "few" if n <= FEW else "many"))
    return tags_from(pairs)
