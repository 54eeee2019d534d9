"""The models of a task: a scene with what is wanted there; the engine judges by itself."""

from __future__ import annotations

from typing import Literal

from coevo_gym.core.task import Verifier, World
from coevo_gym.envs.alfworld.goals import Goal


class ALFWorldWorld(World):
    """A scene and what is wanted there.

    Attributes:
        game: id of the official or built-in game whose scene it is.
        digest: first 16 digits of the content hash of the official games; "builtin".
        goal: what is wanted; None for the game's own, which ``"nothing"`` takes out of force.
    """

    game: str
    digest: str
    goal: Goal | Literal["nothing"] | None = None


class ALFWorldVerifier(Verifier):
    """Nothing: the engine itself knows whether the goal of its world holds."""
