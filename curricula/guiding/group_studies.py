"""Studies for trainers that close groups one by one and never announce the end of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coevo_gym.core.notes import NO_NOTES, Note, Notes
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.guiding.guiding import Guiding


class GroupStudies:
    """Studies that examine groups as they close, with notes passed on once per step.

    Args:
        guiding: the studies and the memories.
        groups_per_step: groups per step of the learner.
        tell: passes notes to the curriculum.

    Attributes:
        notes: the notes of the latest completed step.
    """

    def __init__(
        self, guiding: Guiding, groups_per_step: int, tell: Callable[[Notes], None]
    ) -> None:
        self.guiding, self._groups_per_step, self._tell = guiding, groups_per_step, tell
        self._written: list[Note] = []
        self._n_closed = 0
        self.notes = NO_NOTES

    def closed(self, group: Group) -> None:
        """Examine a closed group and, at the end of a step, pass on the step's notes."""
        self._written += self.guiding.examine([group]).notes
        self._n_closed += 1
        if self._n_closed < self._groups_per_step:
            return
        self.notes = Notes(self._written)
        self._written, self._n_closed = [], 0
        if self.guiding.studies:
            self._tell(self.notes)
        self.guiding.note(self.notes)

    def state_dict(self) -> dict[str, Any]:
        """Return the memories and the notes of the current step as JSON."""
        written = [note.model_dump(mode="json") for note in self._written]
        return {"written": written, "n_closed": self._n_closed, **self.guiding.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`.

        Raises:
            ConfigError: if the state has other memories.
        """
        self.guiding.load_state_dict(state)
        self._written = [Note.model_validate(note) for note in state.get("written", ())]
        self._n_closed = state.get("n_closed", 0)
        self.notes = NO_NOTES
