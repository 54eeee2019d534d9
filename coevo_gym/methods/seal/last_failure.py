"""A selector that draws tasks by their last failure."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from coevo_gym.core.notes import Notes
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.pool.table import Numbers
from coevo_gym.curricula.selectors.base import TableSelector
from coevo_gym.methods.seal.profile import TURN_LABEL, FailureProfile
from coevo_gym.methods.seal.targets import task_target
from coevo_gym.methods.seal.utilities import FAILURES


class LastFailure(TableSelector):
    """A selector that draws tasks by their last failure: frequent, rarely solved ones weigh more.

    A task weighs 1 if it had no failure when it was last practised, was never practised, or had a
    failure that is too rare for statistics.

    Args:
        profile: the counts of the labels of all tasks so far.

    Source: the code of SEAL; its paper (arXiv 2605.24426) does not have it.
    """

    columns: ClassVar = {"failure": 0.0}
    """Position of the label in ``FAILURES``, counted from 1; 0 for none."""

    def __init__(self, profile: FailureProfile) -> None:
        super().__init__()
        self._profile = profile

    def visit(self, row: int, outcomes: Numbers, group: Group) -> None:
        """Discard the failures of an earlier visit."""
        self.table["failure"][row] = 0.0

    def note(self, notes: Notes) -> None:
        """Remember the last failure of each task that a learner's step has practised."""
        for note in notes:
            row = self.table.row(note.task_id)
            if row is not None and note.kind == TURN_LABEL and note.label in FAILURES:
                self.table["failure"][row] = 1 + FAILURES.index(note.label)

    def weights(self) -> Numbers:
        """Return (n,) weights, from 1 to 2."""
        seen, config = self._profile.total, self._profile.config
        targets = [
            task_target(label, seen[label], alpha=config.alpha, confident=config.confident)
            if label in seen
            else None
            for label in FAILURES
        ]
        weights = np.array([1.0, *(1.0 if target is None else target for target in targets)])
        return weights[self.table["failure"].astype(np.int64)]

    def metrics(self) -> dict[str, float]:
        """Return the share of the tasks whose last visit had a failure."""
        failed = self.table["failure"] > 0
        return {"failed": float(failed.mean()) if len(failed) else 0.0}
