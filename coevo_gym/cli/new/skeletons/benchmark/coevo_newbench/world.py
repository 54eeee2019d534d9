"""Data models for a task: the engine's initial state, and the goal for grading."""

from __future__ import annotations

from pydantic import model_validator

from coevo_gym.core.task import Verifier, World


class NewbenchWorld(World):
    """The initial state of a room, which is all that the engine sees of a task.

    Attributes:
        boxes: colours of the boxes, which are closed at the start.
        contents: the things in each box, in the order of ``boxes``.
    """

    boxes: tuple[str, ...]
    contents: tuple[tuple[str, ...], ...]

    @model_validator(mode="after")
    def _check_lengths(self) -> NewbenchWorld:
        if len(self.boxes) != len(self.contents):
            raise ValueError(f"got {len(self.boxes)} boxes, but {len(self.contents)} contents")
        return self


class NewbenchVerifier(Verifier):
    """The goal of a task, which the engine never sees.

    Attributes:
        thing: the thing to move.
        box: colour of its target box.
    """

    thing: str
    box: str
