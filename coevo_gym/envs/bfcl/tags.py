"""Tags of a conversation: the offered backends, and the number of user turns."""

from __future__ import annotations

from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Task
from coevo_gym.envs.bfcl.world import BFCLWorld
from coevo_gym.envs.tags import asks_nothing, tags_from

FEW = 3
"""Maximum number of turns that count as few; one turn has its own tag."""


def tags_of(task: Task | Draft) -> tuple[str, ...]:
    """Return ``api:`` for each backend, and ``turns:`` with ``one``, ``few`` or ``many``.

    The backends are those offered to the agent, not those called by the reference: the agent has to
    find out which ones to call.
    """
    world = task.world
    assert isinstance(world, BFCLWorld)
    pairs = [("api", name) for name in world.classes]
    if not asks_nothing(task):
        n = len(world.turns)
        pairs.append(("turns", "one" if n == 1 else "few" if n <= FEW else "many"))
    return tags_from(pairs)
