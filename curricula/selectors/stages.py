"""From easy to hard in stages."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from coevo_gym.core.task import FrozenModel
from coevo_gym.curricula.pool.table import Numbers, falling
from coevo_gym.curricula.selectors.rated import RatedSelector


def stage_members(
    rates: ArrayLike, *, stages: int, progress: float, cumulative: bool = False
) -> NDArray[np.int64]:
    """The tasks of the stage that is due, from easy to hard.

    Tasks are put in order by falling pass rate, ties by position, and cut into ``stages`` parts of
    equal size, the first ones larger by one where they cannot be equal. Part
    ``min(floor(progress * stages), stages - 1)`` is due; an empty part gives way to the last one
    that is not.

    Args:
        rates: (n,) pass rate of each task.
        stages: number of parts, at least 1.
        progress: share of the whole schedule that is done, from 0; more than 1 counts as 1.
        cumulative: also the tasks of the stages before.

    Returns:
        Positions in rising order.

    Example:
        >>> stage_members([0.1, 0.9, 0.5, 0.5, 0.0], stages=3, progress=0.34).tolist()
        [0, 3]
    """
    order = falling(np.asarray(rates, dtype=np.float64))
    parts = [part for part in np.array_split(order, stages) if len(part)]
    due = min(int(round(progress * stages, 9)), len(parts) - 1)
    members = np.zeros(len(order), dtype=bool)
    members[np.concatenate(parts[: due + 1]) if cumulative else parts[due]] = True
    return np.flatnonzero(members)


class Stages(RatedSelector):
    """Tasks of one stage after the other, by the pass rate of their first tries.

    Args:
        stages: number of stages.
        groups_per_stage: groups of practice after which the next stage begins; the last one never
            ends.
        cumulative: keep the tasks of the stages before.
    """

    def __init__(self, stages: int, groups_per_stage: int, *, cumulative: bool = False) -> None:
        super().__init__()
        self.stages, self.groups_per_stage = stages, groups_per_stage
        self.cumulative = cumulative

    @property
    def progress(self) -> float:
        """Share of the schedule that is done; over 1 in the last stage's own time."""
        return self.practised / (self.stages * self.groups_per_stage)

    def rated_weights(self) -> Numbers:
        """1 for the tasks of the stage that is due, else 0."""
        stages, progress, cumulative = self.stages, self.progress, self.cumulative
        due = stage_members(self.rates, stages=stages, progress=progress, cumulative=cumulative)
        weights = np.zeros(len(self.table))
        weights[due] = 1.0
        return weights

    def metrics(self) -> dict[str, float]:
        """Number of the stage, from 0, and how many tasks have a rate."""
        stage = min(int(round(self.progress * self.stages, 9)), self.stages - 1)
        return {**super().metrics(), "stage": float(stage)}


class StagesConfig(FrozenModel):
    """From easy to hard in stages, by the pass rate of each task's first tries."""

    kind: Literal["stages"] = "stages"
    stages: int = Field(default=3, ge=1)
    """How many stages of equal size."""
    groups_per_stage: int = Field(default=160, ge=1)
    """Groups of practice in each stage but the last, first tries not counted."""
    cumulative: bool = False
    """Keep the tasks of the stages before."""

    def make(self) -> Stages:
        """The selector."""
        return Stages(self.stages, self.groups_per_stage, cumulative=self.cumulative)
