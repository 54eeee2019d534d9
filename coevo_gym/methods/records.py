"""Memories that describe the latest learner step only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coevo_gym.core.notes import Notes


class StepRecord:
    """A memory with the metrics of the latest step's notes; subclasses define :meth:`measure`.

    Checkpoints are saved between steps, so its state is empty.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, float] = {}

    def measure(self, notes: Notes) -> dict[str, float]:
        """Return the metrics of a step's notes; {} without notes of its kind."""
        raise NotImplementedError

    def note(self, notes: Notes) -> None:
        """Replace the metrics; see :class:`~coevo_gym.core.seams.Memory`."""
        self._metrics = self.measure(notes)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the latest step."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        """Return {}."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Forget the metrics."""
        self._metrics = {}
