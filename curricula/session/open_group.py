"""A group while its episodes are still to come, or while it waits to be recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coevo_gym.core.errors import TaskError
from coevo_gym.core.seams import Ticket
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.core.trajectory_json import trajectory_from_json, trajectory_to_json
from coevo_gym.curricula.pool.pool import require_practised
from coevo_gym.curricula.saved import Count, read


@dataclass(slots=True)
class Place:
    """One of a group's K places.

    Attributes:
        issued: tickets issued for it so far.
        lost: tickets of it that were given back.
        trajectory: the episode that has arrived; None until then.
    """

    issued: int = 0
    lost: int = 0
    trajectory: Trajectory | None = None


@dataclass(slots=True)
class OpenGroup:
    """A group of the ledger.

    Attributes:
        id: unique within a run.
        task: the one task of its episodes.
        places: its K places.
        in_step: whether it was drawn for a learner step, and is recorded with one.
        n_begun: places of which a ticket has been issued; they begin in order.
        broken: a place was lost too often; it is not issued again, and the group will not be whole.
        slot: the one slot whose copies the places are for; None where anybody may take them.
        out: places whose ticket is under way.
    """

    id: str
    task: Task
    places: list[Place]
    in_step: bool = False
    n_begun: int = 0
    broken: bool = False
    slot: str | None = None
    out: set[int] = field(default_factory=set)

    @property
    def n_unbegun(self) -> int:
        """Places that are still to be issued for the first time.

        A broken group has none, unless it is a slot's: the other copies of the slot need its task.
        """
        unbegun = len(self.places) - self.n_begun
        return unbegun if self.slot is not None or not self.broken else 0

    @property
    def over(self) -> bool:
        """Whether nothing more will arrive."""
        complete = all(place.trajectory for place in self.places)
        return not self.out and (complete or (self.broken and not self.n_unbegun))

    def check_fit(self, ticket: Ticket, trajectory: Trajectory) -> None:
        """Refuse an episode that is not one of this group.

        Raises:
            TaskError: if the trajectory is of another task or group, or if its end says nothing
                about the agent.
        """
        if trajectory.task_id != self.task.id:
            raise TaskError(
                f"Ticket {ticket.id} is for task {self.task.name}, but the trajectory is of task "
                f"{trajectory.task_id}."
            )
        if trajectory.group_id not in ("", self.id):
            raise TaskError(
                f"Ticket {ticket.id} belongs to {self.id}, but the trajectory says "
                f"{trajectory.group_id!r}."
            )
        if trajectory.end_reason.lost:
            raise TaskError(
                f"An episode that ended {str(trajectory.end_reason)!r} says nothing about the "
                "agent. Use give_back() instead of finish()."
            )

    def drop_unbegun(self) -> None:
        """Issue nothing more of it: whom its places are kept for does not come."""
        self.n_begun = len(self.places)
        self.broken = True

    def close(self, policy_version: int, max_staleness: int = 0) -> Group:
        """Return the group as it stands.

        Args:
            policy_version: the policy's newest version.
            max_staleness: versions that its episodes may be apart, or behind.
        """
        arrived = tuple(place.trajectory for place in self.places if place.trajectory)
        return Group(self.id, self.task, len(self.places), arrived, policy_version, max_staleness)

    def to_json(self) -> dict[str, Any]:
        """All but the tickets under way."""
        places = [
            {
                "issued": place.issued,
                "lost": place.lost,
                "trajectory": place.trajectory and trajectory_to_json(place.trajectory),
            }
            for place in self.places
        ]
        return {
            "id": self.id,
            "task": self.task.to_json(),
            "in_step": self.in_step,
            "n_begun": self.n_begun,
            "broken": self.broken,
            "slot": self.slot,
            "places": places,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OpenGroup:
        """Read :meth:`to_json`; older states know no steps and no slots.

        Raises:
            SplitLeakError, TaskError: if its task may not be practised.
        """
        places = [
            Place(
                read(Count, place["issued"]),
                read(Count, place["lost"]),
                place["trajectory"] and trajectory_from_json(place["trajectory"]),
            )
            for place in read(list[dict[str, Any]], data["places"])
        ]
        return cls(
            read(str, data["id"]),
            require_practised(Task.from_json(data["task"]), "practise"),
            places,
            read(bool, data.get("in_step", False)),
            read(Count, data["n_begun"]),
            read(bool, data["broken"]),
            read(str | None, data.get("slot")),
        )
