"""The parts of a method that a sampler uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from coevo_gym.core.evolution import Round
from coevo_gym.core.seams import Coach, Curriculum, Evolver, Memory, Study


class MethodParts(Protocol):
    """The parts of a method that a sampler uses. The trainer handles its credit and learner."""

    @property
    def curriculum(self) -> Curriculum:
        """The curriculum, which chooses the tasks."""
        ...

    @property
    def evolver(self) -> Evolver | None:
        """The evolver that runs rounds; None for a curriculum that never plans one."""
        ...

    @property
    def first_round(self) -> Round | None:
        """The round that finds the initial tasks; None if the curriculum has tasks."""
        ...

    @property
    def coach(self) -> Coach | None:
        """The coach, which supplies the guidance of episodes; None for no guidance."""
        ...

    @property
    def studies(self) -> tuple[Study, ...]:
        """The studies, which write notes about groups."""
        ...

    @property
    def memories(self) -> Mapping[str, Memory]:
        """The memories, which grow from the notes, by name."""
        ...
