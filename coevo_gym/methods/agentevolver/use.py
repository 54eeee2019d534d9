"""A study of how useful experiences were to the rollouts that used them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from coevo_gym.core.notes import Findings, Note
from coevo_gym.core.spend import Usage
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.trajectory import Group
from coevo_gym.methods.agentevolver.coach import told_ids
from coevo_gym.methods.agentevolver.experience import EXPERIENCE_USE


def difference(guided: Sequence[float], free: Sequence[float]) -> float | None:
    """Return the difference in success rate between rollouts with and without an experience.

    Args:
        guided: success (0 or 1) of each rollout with the experience.
        free: success (0 or 1) of each rollout without experiences.

    Returns:
        The difference in [-1, 1], or None if there are no rollouts of one kind.

    Example:
        >>> difference([1, 0], [0, 0])
        0.5
    """
    return fmean(guided) - fmean(free) if guided and free else None


class ExperienceUse:
    """A study that compares rollouts with and without an experience in the same group.

    It writes a note for each experience. The note's value is the difference in success rates; its
    label is ``helped``, ``harmed`` or ``even``; and its evidence has the ``experience``'s id and
    the rates ``guided`` and ``free``. A rollout may get several experiences, each of which gets the
    credit for all of them. Lost rollouts do not count.

    Args:
        spent: returns the cost of adapting experiences to tasks since the last call, which becomes
            part of the findings' cost.
    """

    kind = EXPERIENCE_USE

    def __init__(self, spent: Callable[[], Mapping[str, Usage]] = dict) -> None:
        self._spent = spent

    def examine(self, groups: Sequence[Group]) -> Findings:
        """Compare the rollouts in each group; see :class:`~coevo_gym.core.seams.Study`."""
        notes = tuple(note for group in groups for note in self._of(group))
        return Findings(notes, self._spent())

    def _of(self, group: Group) -> list[Note]:
        free: list[float] = []
        guided: dict[str, list[float]] = {}
        first: dict[str, int] = {}
        for index, trajectory in enumerate(group.trajectories):
            if trajectory.end_reason.lost:
                continue
            told = told_ids(trajectory.cue_ids)
            for id in told:
                guided.setdefault(id, []).append(float(trajectory.success))
                first.setdefault(id, index)
            if not told:
                free.append(float(trajectory.success))
        found = []
        for id, outcomes in guided.items():
            gained = difference(outcomes, free)
            if gained is not None:
                found.append(self._note(group, first[id], id, gained, fmean(outcomes), fmean(free)))
        return found

    def _note(
        self, group: Group, index: int, id: str, gained: float, guided: float, free: float
    ) -> Note:
        return Note(
            kind=self.kind,
            task_id=group.task.id,
            group_id=group.id,
            index=index,
            label="helped" if gained > 0 else "harmed" if gained < 0 else "even",
            value=gained,
            evidence=FrozenDict(experience=id, guided=guided, free=free),
        )
