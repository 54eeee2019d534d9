"""What a sampler takes of a method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from coevo_gym.core.evolution import Round
from coevo_gym.core.seams import Coach, Curriculum, Evolver, Memory, Study


class MethodParts(Protocol):
    """What a sampler takes of a method; its credit and its learner are the trainer's business."""

    @property
    def curriculum(self) -> Curriculum:
        """What to practise."""
        ...

    @property
    def evolver(self) -> Evolver | None:
        """Carries out rounds; None for a curriculum that never plans one."""
        ...

    @property
    def first_round(self) -> Round | None:
        """Finds the tasks to begin with; None if the curriculum has some."""
        ...

    @property
    def coach(self) -> Coach | None:
        """Gives episodes their guidance; None for none."""
        ...

    @property
    def studies(self) -> tuple[Study, ...]:
        """Write notes about groups."""
        ...

    @property
    def memories(self) -> Mapping[str, Memory]:
        """Grow from the notes, by name."""
        ...
