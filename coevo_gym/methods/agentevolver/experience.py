"""Experiences: what past rollouts taught, in words, and how useful that was."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field

from coevo_gym.core.evolution import digest
from coevo_gym.core.task import FrozenModel, Text

EXPERIENCE = "experience"
"""Kind of the notes that hold a new experience."""
EXPERIENCE_USE = "experience_use"
"""Kind of the notes that compare the rollouts that were told an experience with the others."""

OFFERED, REFUSED = "offered", "refused"
"""Labels of these notes: an experience, or one that gives its task away and is never told."""

Source = Literal["pair", "success", "failure", "rule"]
"""What an experience was made from: a success and a failure, one of the two, or by a rule."""


class Experience(FrozenModel):
    """A piece of advice.

    Attributes:
        when_to_use: the tasks that it is for, in words; compared with instructions.
        content: what to do or to avoid.
        task_id: id of the task that it comes from.
        source: what it was made from.
    """

    when_to_use: Text = Field(min_length=1)
    content: Text = Field(min_length=1)
    task_id: str
    source: Source

    @property
    def id(self) -> str:
        """Hash of both texts."""
        return digest([self.when_to_use, self.content])


class Usefulness(NamedTuple):
    """How much more often rollouts succeed that are told an experience.

    Attributes:
        utility: moving average of the difference of success rates, in [-1, 1]; 0 until measured.
        groups: groups in which some rollouts were told it and some were told nothing.

    Source: ours; AgentEvolver (arXiv 2511.10395) asks a model whether an experience is valid.
    """

    utility: float = 0.0
    groups: int = 0

    def after(self, difference: float, beta: float) -> Usefulness:
        """Return it with another group.

        Args:
            difference: mean success of the rollouts that were told it, minus that of the others.
            beta: weight of the new difference; the first one counts in full.
        """
        kept = (1.0 - beta) * self.utility + beta * difference if self.groups else difference
        return Usefulness(kept, self.groups + 1)

    def harms(self, least_groups: int) -> bool:
        """Return True if it is below 0 after at least ``least_groups`` groups."""
        return self.groups >= least_groups and self.utility < 0.0


UNMEASURED = Usefulness()
"""How useful an experience is known to be at first."""
