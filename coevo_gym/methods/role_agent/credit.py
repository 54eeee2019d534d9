"""Step returns that are multiplied by foresight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coevo_gym.core.notes import Notes
from coevo_gym.core.trajectory import Group
from coevo_gym.methods.role_agent.foresight import FORESIGHT
from coevo_gym.trainers.credit import AtTheEnd


@dataclass(frozen=True)
class ForesightWorth:
    """A step's discounted outcome times 1 + its foresight: R_t = R_task (1 + R_pre).

    A step without a note keeps its return, and so do all steps of a trajectory whose reward is not
    above 0: penalties are not multiplied.

    Attributes:
        gamma: discount of the outcome from one step to the one before.

    Source: Role-Agent (arXiv 2606.10917), Eq. 6.
    """

    gamma: float = 0.95

    def __call__(
        self, group: Group, rewards: Sequence[float], notes: Notes
    ) -> Sequence[Sequence[float]]:
        """Return the worth of a step; see :class:`~coevo_gym.trainers.credit.StepWorth`."""
        returns = AtTheEnd(self.gamma)(group, rewards, notes)
        return [
            self._multiplied(of_steps, notes, group.id, index) if reward > 0.0 else of_steps
            for index, (of_steps, reward) in enumerate(zip(returns, rewards, strict=True))
        ]

    def _multiplied(
        self, returns: Sequence[float], notes: Notes, group_id: str, index: int
    ) -> list[float]:
        found = list(returns)
        for note in notes.of(FORESIGHT, group_id, index):
            found[note.step] *= 1.0 + note.value
        return found
