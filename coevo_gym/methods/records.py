"""Memories that only hold metrics for the latest learner step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from coevo_gym.core.notes import Notes


class StepRecord(ABC):
    """A base class for components that compute metrics from a learner step's analysis notes.

    Subclasses define :meth:`measure`. Checkpoints are saved between steps, so the state is empty.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, float] = {}

    @abstractmethod
    def measure(self, notes: Notes) -> dict[str, float]:
        """Return metrics for a step's notes, or {} if the step has no relevant notes."""

    def note(self, notes: Notes) -> None:
        """Compute the metrics from the notes; see :class:`~coevo_gym.core.seams.Memory`."""
        self._metrics = self.measure(notes)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the latest step."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dict, because the memory has no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Clear the metrics."""
        self._metrics = {}
