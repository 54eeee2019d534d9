"""The models of a task: what the engine starts with, and what the judge compares with."""

from __future__ import annotations

from pydantic import model_validator

from coevo_gym.core.task import Verifier, World


class NewbenchWorld(World):
    """A room: all that the engine may know.

    Attributes:
        boxes: colours of the boxes, which are closed at the start.
        contents: the things in each box, in the order of ``boxes``.
    """

    boxes: tuple[str, ...]
    contents: tuple[tuple[str, ...], ...]

    @model_validator(mode="after")
    def _fits(self) -> NewbenchWorld:
        if len(self.boxes) != len(self.contents):
            raise ValueError(f"{len(self.boxes)} boxes have {len(self.contents)} contents")
        return self


class NewbenchVerifier(Verifier):
    """What is wanted in the end; the engine never sees it.

    Attributes:
        thing: what is to be moved.
        box: colour of the box that it is to lie in.
    """

    thing: str
    box: str
