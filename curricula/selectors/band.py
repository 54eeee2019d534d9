"""Tasks that are neither done nor out of reach, as long as they are not used up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from coevo_gym.core.notes import Notes
from coevo_gym.core.task import FrozenModel, Task
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.pool.table import Numbers
from coevo_gym.curricula.pool.task_stats import CAP, TaskStats

LOW, HIGH = 0.1, 0.9
"""The band: expected success rates of tasks that there is something to learn from. With 8 episodes
a group, a first visit that always or never succeeds leads out of it on the side of the pool's mean,
and a mixed one does not."""


def band_weights(
    rates: ArrayLike, visits: ArrayLike, *, cap: int | None = CAP, epsilon: float = 0.1
) -> Numbers:
    """Chance of each task: the same for those in the band, and little for the others.

    w = 0 for a task that was visited and has p > 0.9, or p < 0.1, or at least ``cap`` visits; else
    1. P = (1 - epsilon) w / sum(w) + epsilon / n; uniform if all w are 0.

    Args:
        rates: (n,) p, the success rate that is expected of each task; n >= 1.
        visits: (n,) how often each was visited.
        cap: visits after which a task is used up; None for no end.
        epsilon: share of the draws that is uniform over all tasks, in [0, 1].

    Returns:
        (n,) probabilities.

    Example:
        >>> band_weights([0.5, 0.95, 0.95], [1, 1, 0], epsilon=0.0).tolist()
        [0.5, 0.0, 0.5]
    """
    p, seen = np.asarray(rates, dtype=np.float64), np.asarray(visits, dtype=np.float64)
    done = (p > HIGH) | (p < LOW)
    if cap is not None:
        done |= seen >= cap
    inside = (~done | (seen == 0)).astype(np.float64)
    if not inside.any():
        return np.full(len(p), 1.0 / len(p))
    mixed: Numbers = (1.0 - epsilon) * inside / inside.sum() + epsilon / len(p)
    return mixed


class Band:
    """Draws the tasks of the band, each with the same chance, and few of the others.

    A task that was never visited is in the band. The few others are drawn so that it is noticed
    when a task comes back into the band, for example because it is forgotten.

    With ``shuffled``, the rates of the visited tasks are dealt out among them, so that as many lie
    outside the band, whosever they are. How depends on the state alone and changes with each group.
    That is the control for what outcomes are worth: all that does not depend on *which* task went
    how is the same, visits included.

    Args:
        cap: visits after which a task is used up; None for no end.
        epsilon: share of the draws that is uniform over the pool.
        shuffled: whether the outcomes that are read are those of other tasks.
    """

    def __init__(
        self, cap: int | None = CAP, *, epsilon: float = 0.1, shuffled: bool = False
    ) -> None:
        self.cap, self.epsilon, self.shuffled = cap, epsilon, shuffled
        self.stats = TaskStats()

    def added(self, tasks: Sequence[Task]) -> None:
        """The pool has grown by these tasks, in this order."""
        self.stats.add(tasks)

    def record(self, groups: Sequence[Group]) -> None:
        """Take in finished groups of training episodes."""
        self.stats.record(groups)

    def note(self, notes: Notes) -> None:
        """Nothing to learn: it reads outcomes alone."""

    @property
    def rates(self) -> Numbers:
        """(n,) the success rate that each task goes by."""
        rates = self.stats.rates
        if self.shuffled:
            visits = self.stats.visits
            seen = np.flatnonzero(visits)
            rng = np.random.default_rng(int(visits.sum()))
            rates[seen] = rates[rng.permutation(seen)]
        return rates

    def weights(self) -> Numbers:
        """(n,) chance of each task."""
        return band_weights(self.rates, self.stats.visits, cap=self.cap, epsilon=self.epsilon)

    def metrics(self) -> dict[str, float]:
        """Shares of the pool that were visited and are too easy, too hard, or used up.

        A task that is used up counts as that, however it goes.
        """
        n = max(len(self.stats), 1)
        rates, visits = self.rates, self.stats.visits
        used_up = visits >= (np.inf if self.cap is None else self.cap)
        open = (visits > 0) & ~used_up
        easy, hard = open & (rates > HIGH), open & (rates < LOW)
        shares = {"too_easy": easy, "too_hard": hard, "used_up": used_up}
        return {name: float(rows.sum()) / n for name, rows in shares.items()}

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        return {"stats": self.stats.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.stats.load_state_dict(state["stats"])


class BandConfig(FrozenModel):
    """Tasks with a success rate between 0.1 and 0.9, until they are used up."""

    kind: Literal["band"] = "band"
    cap: int | None = Field(default=CAP, ge=1)
    """Visits after which a task is used up; none for no end, which a pool that does not grow needs.
    It is of groups of 8."""
    epsilon: float = Field(default=0.1, gt=0, le=1)
    """Share of the draws that is uniform over the pool."""
    shuffled: bool = False
    """Whether the outcomes that are read are those of other tasks: the control for what knowing
    them is worth."""

    def make(self) -> Band:
        """The selector."""
        return Band(self.cap, epsilon=self.epsilon, shuffled=self.shuffled)
