"""Data models for ALFWorld tasks: scenes and goals. The engine itself judges the goals."""

from __future__ import annotations

from typing import Literal

from coevo_gym.core.task import Verifier, World
from coevo_gym.envs.alfworld.goals import RoomGoal


class ALFWorldWorld(World):
    """The world of an ALFWorld task: a scene and a goal.

    Attributes:
        game: id of the official or built-in game that the scene is from.
        digest: first 16 digits of the content hash of the official games, or "builtin".
        goal: the goal. None means the game's own goal, and ``"nothing"`` means an open task.
    """

    game: str
    digest: str
    goal: RoomGoal | Literal["nothing"] | None = None


class ALFWorldVerifier(Verifier):
    """A no-op verifier; the engine itself checks whether the goal is met."""
