"""Uniform selection of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from coevo_gym.core.notes import Notes
from coevo_gym.core.task import FrozenModel, Task
from coevo_gym.core.trajectory import Group


class Uniform:
    """A selector that draws all tasks of the pool with equal probability."""

    def added(self, tasks: Sequence[Task]) -> None:
        """Do nothing; there is no state."""

    def weights(self) -> None:
        """Return None, for uniform weights."""

    def record(self, groups: Sequence[Group]) -> None:
        """Do nothing; there is nothing to learn."""

    def note(self, notes: Notes) -> None:
        """Do nothing; there is nothing to learn."""

    def metrics(self) -> dict[str, float]:
        """Return no metrics."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing; there is no state."""


class UniformConfig(FrozenModel):
    """Equal probability for all tasks."""

    kind: Literal["uniform"] = "uniform"

    def make(self) -> Uniform:
        """Create the selector."""
        return Uniform()
