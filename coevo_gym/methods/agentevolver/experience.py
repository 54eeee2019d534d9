"""Experiences: lessons of past rollouts, in words, and their usefulness."""

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
"""Labels of these notes: an experience, or an experience that gives its task away and is never
told."""

MAX_QUESTIONS = 256
"""Maximum questions per step of the learner of each kind; the paper's batches have 256 episodes."""

Source = Literal["pair", "success", "failure", "rule"]
"""Origins of experiences: a success and a failure, one of the two, or a rule."""


class Experience(FrozenModel):
    """A piece of advice.

    Attributes:
        when_to_use: the tasks that it is for, in words; compared with instructions.
        content: advice on actions to take or to avoid.
        task_id: id of its task of origin.
        source: its origin.
    """

    when_to_use: Text = Field(min_length=1)
    content: Text = Field(min_length=1)
    task_id: str
    source: Source

    @property
    def id(self) -> str:
        """Return the hash of both texts."""
        return digest([self.when_to_use, self.content])


class Usefulness(NamedTuple):
    """The difference in success between rollouts that are told an experience and others.

    Attributes:
        utility: moving average of the difference of success rates, in [-1, 1]; 0 until measured.
        groups: groups in which some rollouts were told the experience and some were told nothing.

    Source: ours; AgentEvolver (arXiv 2511.10395) asks a model whether an experience is valid.
    """

    utility: float = 0.0
    groups: int = 0

    def after(self, difference: float, beta: float) -> Usefulness:
        """Return the usefulness after another group.

        Args:
            difference: mean success of the rollouts that were told the experience, minus that of
                the others.
            beta: weight of the new difference; the first one counts in full.
        """
        kept = (1.0 - beta) * self.utility + beta * difference if self.groups else difference
        return Usefulness(kept, self.groups + 1)

    def harms(self, least_groups: int) -> bool:
        """Return True if the utility is below 0 after at least ``least_groups`` groups."""
        return self.groups >= least_groups and self.utility < 0.0


UNMEASURED = Usefulness()
"""The usefulness of a new experience."""
