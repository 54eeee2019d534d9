"""The data models of a task: its scene and goal. The engine itself judges the goal."""

from __future__ import annotations

from typing import Literal

from coevo_gym.core.task import Verifier, World
from coevo_gym.envs.alfworld.goals import RoomGoal


class ALFWorldWorld(World):
    """A scene and its goal.

    Attributes:
        game: id of the official or built-in game that the scene is from.
        digest: first 16 digits of the content hash of the official games, or "builtin".
        goal: the goal; None for the game's own goal; ``"nothing"`` for an open task.
    """

    game: str
    digest: str
    goal: RoomGoal | Literal["nothing"] | None = None


class ALFWorldVerifier(Verifier):
    """An empty verifier: the engine itself knows if the goal of its world holds."""
