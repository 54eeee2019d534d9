"""Every task with the same chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from coevo_gym.core.notes import Notes
from coevo_gym.core.task import FrozenModel, Task
from coevo_gym.core.trajectory import Group


class Uniform:
    """Every task of the pool with the same chance, whatever happened on it."""

    def added(self, tasks: Sequence[Task]) -> None:
        """Nothing to keep."""

    def weights(self) -> None:
        """None: uniform."""

    def record(self, groups: Sequence[Group]) -> None:
        """Nothing to learn."""

    def note(self, notes: Notes) -> None:
        """Nothing to learn."""

    def metrics(self) -> dict[str, float]:
        """None."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Nothing to save."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""


class UniformConfig(FrozenModel):
    """Every task with the same chance."""

    kind: Literal["uniform"] = "uniform"

    def make(self) -> Uniform:
        """The selector."""
        return Uniform()
