"""A selector that goes through stages of tasks, from easy to hard."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from coevo_gym.core.task import FrozenModel
from coevo_gym.curricula.pool.table import Numbers, argsort_descending
from coevo_gym.curricula.selectors.base import RatedSelector


def stage_members(
    rates: ArrayLike, *, stages: int, progress: float, cumulative: bool = False
) -> NDArray[np.int64]:
    """Return the indices of the tasks in the current stage.

    Tasks are sorted by descending pass rate, with ties broken by index, and split into ``stages``
    parts of equal size; if the sizes cannot be equal, the first parts are larger by one. The
    current part is ``min(floor(progress * stages), stages - 1)``; an empty part is replaced by the
    last non-empty part.

    Args:
        rates: (n,) pass rate of each task.
        stages: number of parts, at least 1.
        progress: completed share of the schedule, from 0; values above 1 count as 1.
        cumulative: True to include the tasks of earlier stages.

    Returns:
        Indices in ascending order.

    Example:
        >>> stage_members([0.1, 0.9, 0.5, 0.5, 0.0], stages=3, progress=0.34).tolist()
        [0, 3]
    """
    order = argsort_descending(np.asarray(rates, dtype=np.float64))
    parts = [part for part in np.array_split(order, stages) if len(part)]
    due = min(int(round(progress * stages, 9)), len(parts) - 1)
    members = np.zeros(len(order), dtype=bool)
    members[np.concatenate(parts[: due + 1]) if cumulative else parts[due]] = True
    return np.flatnonzero(members)


class StagesConfig(FrozenModel):
    """Settings for a selector that draws tasks in stages, ordered by first-attempt pass rate."""

    kind: Literal["stages"] = "stages"
    stages: int = Field(default=3, ge=1)
    """Number of equally large stages."""
    groups_per_stage: int = Field(default=160, ge=1)
    """Training groups per stage, not counting first attempts; the last stage never ends."""
    cumulative: bool = False
    """Keep drawing the tasks of earlier stages."""

    def make(self) -> Stages:
        """Create a selector with these settings."""
        return Stages(self)


class Stages(RatedSelector):
    """A selector that draws tasks in stages, from easy to hard. The last stage never ends."""

    def __init__(self, config: StagesConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def progress(self) -> float:
        """The fraction of the schedule that is complete. It exceeds 1 after the schedule's end."""
        return self.practised / (self.config.stages * self.config.groups_per_stage)

    def rated_weights(self) -> Numbers:
        """Return a weight of 1 for the tasks in the current stage and 0 for all others."""
        weights, config = np.zeros(len(self.table)), self.config
        due = stage_members(
            self.rates, stages=config.stages, progress=self.progress, cumulative=config.cumulative
        )
        weights[due] = 1.0
        return weights

    def metrics(self) -> dict[str, float]:
        """Return the index of the stage, and the number and mean pass rate of the rated tasks."""
        stages = self.config.stages
        stage = min(int(round(self.progress * stages, 9)), stages - 1)
        return {**super().metrics(), "stage": float(stage)}
