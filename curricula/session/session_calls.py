"""The calls of a curriculum session, as messages that can be sent, stored and repeated.

    session.execute(Take(policy_version=3))     # the same as session.take(policy_version=3)

Sessions, journals, server routes and actor proxies use the same messages, and handle all of them in
one method, :meth:`TaskSession.execute`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Generic, TypeVar

from pydantic import ConfigDict, Field, InstanceOf, ValidationError

from coevo_gym.core.errors import TaskError
from coevo_gym.core.evolution import RoundResult
from coevo_gym.core.seams import Later, Ticket
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import EndReason, Group, Trajectory
from coevo_gym.core.trajectory_json import trajectory_from_json, trajectory_to_json

AnswerT = TypeVar("AnswerT")
Name = Annotated[str, Field(min_length=1, max_length=200)]


@dataclass(frozen=True)
class SessionCall(Generic[AnswerT]):
    """A call that may change a session; its answer has the type ``AnswerT``.

    The tickets API checks the limits in the annotations for messages from other machines. They are
    not checked when a journal is read, because it may contain any call that was executed.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Take(SessionCall[Ticket | Later]):
    """A request for a ticket for one more episode.

    Attributes:
        policy_version: version of the policy that will act.
        slot: name shared by the copies of a row; None for the next place in any group without a
            slot.
        request: unique name for this call. A repeated call with the same name returns the same
            ticket until the ticket's lease expires.
    """

    policy_version: Annotated[int, Field(ge=0)] = 0
    slot: Name | None = None
    request: Name | None = None


@dataclass(frozen=True)
class Report(SessionCall[Group | None]):
    """A report of a finished episode.

    Attributes:
        ticket: id of the episode's ticket.
        trajectory: the episode, or its JSON as written by ``trajectory_to_json``.
    """

    ticket: Name
    trajectory: InstanceOf[Trajectory] | dict[str, Any]


@dataclass(frozen=True)
class GiveBack(SessionCall[Group | None]):
    """A call that gives back a ticket whose episode will not finish.

    Attributes:
        ticket: id of the ticket.
        reason: the reason, such as ``EndReason.WORKER_LOST``.
        lost: True to count it as a loss; False if the episode was only cancelled.
    """

    ticket: Name
    reason: EndReason = EndReason.ABANDONED
    lost: bool = True


@dataclass(frozen=True)
class Renew(SessionCall[bool]):
    """A request to renew a ticket's lease.

    Attributes:
        ticket: id of the ticket.
    """

    ticket: Name


@dataclass(frozen=True)
class Evolve(SessionCall[RoundResult | None]):
    """A request to run the round that is due and to apply its result.

    Attributes:
        result: the round's result if it has already been run elsewhere; None to run it.
    """

    result: RoundResult | None = None


@dataclass(frozen=True)
class Sweep(SessionCall[int]):
    """A request to reclaim the tickets and slots whose leases have expired."""


@dataclass(frozen=True)
class CloseSpentStep(SessionCall[bool]):
    """A request to close an automatically opened step that has no tickets left."""


CALLS: Mapping[str, type[SessionCall[Any]]] = {
    "take": Take,
    "report": Report,
    "give_back": GiveBack,
    "renew": Renew,
    "evolve": Evolve,
    "sweep": Sweep,
    "close_spent_step": CloseSpentStep,
}
"""Messages by the name used in journals and in the paths of the tickets API."""
_NAMES = {message: name for name, message in CALLS.items()}


def call_name(call: SessionCall[Any]) -> str:
    """Return a message's name."""
    return next(_NAMES[message] for message in type(call).__mro__ if message in _NAMES)


def call_to_json(call: SessionCall[Any]) -> dict[str, Any]:
    """Return a message's fields as JSON."""
    body: dict[str, Any] = {field.name: getattr(call, field.name) for field in fields(call)}
    if isinstance(call, Report) and isinstance(call.trajectory, Trajectory):
        body["trajectory"] = trajectory_to_json(call.trajectory)
    elif isinstance(call, Evolve) and call.result is not None:
        body["result"] = call.result.model_dump(mode="json")
    return body


def call_from_json(name: str, body: Mapping[str, Any]) -> SessionCall[Any]:
    """Return the message with the given name, from fields written by :func:`call_to_json`.

    Raises:
        KeyError: if there is no message with this name.
        TypeError, ValueError: if these are not its fields.
    """
    values = dict(body)
    if "reason" in values:
        values["reason"] = EndReason(values["reason"])
    if values.get("result") is not None:
        values["result"] = RoundResult.model_validate(values["result"])
    return CALLS[name](**values)


def ticket_to_json(ticket: Ticket) -> dict[str, Any]:
    """Return a ticket as JSON; see :func:`ticket_from_json`."""
    return {
        "id": ticket.id,
        "group_id": ticket.group_id,
        "index": ticket.index,
        "policy_version": ticket.policy_version,
        "task": ticket.task.model_dump(mode="json"),
    }


def ticket_from_json(body: Mapping[str, Any]) -> Ticket:
    """Return the ticket that :func:`ticket_to_json` wrote; other keys are ignored."""
    return Ticket(
        body["id"],
        Task.from_json(json.dumps(body["task"])),
        body["group_id"],
        body["index"],
        body["policy_version"],
    )


def group_to_json(group: Group) -> dict[str, Any]:
    """Return a group as JSON, with its trajectories; see :func:`group_from_json`."""
    return {
        "id": group.id,
        "task": group.task.model_dump(mode="json"),
        "size": group.size,
        "trajectories": [trajectory_to_json(episode) for episode in group.trajectories],
        "policy_version": group.policy_version,
        "max_staleness": group.max_staleness,
    }


def group_from_json(body: Mapping[str, Any]) -> Group:
    """Return the group that :func:`group_to_json` wrote."""
    return Group(
        body["id"],
        Task.from_json(json.dumps(body["task"])),
        body["size"],
        tuple(map(trajectory_from_json, body["trajectories"])),
        body["policy_version"],
        body["max_staleness"],
    )


def to_trajectory(episode: Trajectory | dict[str, Any]) -> Trajectory:
    """Return a trajectory, after parsing it if it is JSON.

    Raises:
        TaskError: if the JSON does not describe an episode.
    """
    if not isinstance(episode, dict):
        return episode
    try:
        return trajectory_from_json(episode)
    except (ValidationError, ValueError, TypeError, RecursionError) as error:
        raise TaskError(f"This is not valid trajectory JSON: {error}") from error


class TaskSession(ABC):
    """The interface of a curriculum session, shared by local sessions and proxies for remote ones.

    A proxy may be used in any process, including worker processes. The methods send the calls that
    this module defines. Every call may be repeated.

    Attributes:
        lease_s: the lease time of a ticket in seconds, or None for no limit.
        benchmark: name of the tasks' benchmark; "" if the session does not know it.
    """

    lease_s: float | None
    benchmark: str = ""

    @abstractmethod
    def execute(self, call: SessionCall[AnswerT]) -> AnswerT:
        """Execute a call and return its answer."""

    def take(
        self, *, policy_version: int = 0, slot: str | None = None, request: str | None = None
    ) -> Ticket | Later:
        """Take a ticket for one more episode.

        Args:
            policy_version: version of the policy that will act.
            slot: name shared by the copies of a row; None for the next place in any group without a
                slot.
            request: unique name for this call. A repeated call with the same name returns the same
                ticket until the ticket's lease expires.

        Returns:
            A ticket, or the reason why no ticket is available yet: all tickets of the open step
            have been issued, or the pool is empty and a round that finds tasks is running.

        Raises:
            ConfigError: if the curriculum has no tasks.
            SplitLeakError: if the curriculum returns a task that is not a training task.
        """
        return self.execute(Take(policy_version, slot, request))

    def report(self, ticket_id: str, trajectory: Trajectory | dict[str, Any]) -> Group | None:
        """Report a finished episode.

        Args:
            ticket_id: id of the ticket. If the ticket is not outstanding, the episode is dropped
                and counted (see :attr:`ticket_counts`).
            trajectory: the episode, or its JSON as written by ``trajectory_to_json``.

        Returns:
            The group if this episode closes it. The curriculum has already recorded it, or will at
            the end of the step.

        Raises:
            TaskError: if the trajectory is invalid, belongs to another task or group, or if its end
                reason marks it as lost. The ticket stays outstanding.
            SplitLeakError: if the trajectory is not a training trajectory.
        """
        return self.execute(Report(ticket_id, trajectory))

    def give_back(self, ticket_id: str, reason: EndReason, *, lost: bool = True) -> Group | None:
        """Give back a ticket whose episode will not finish. It does not count as a failed episode.

        Args:
            ticket_id: id of the ticket; ignored if the ticket is no longer outstanding.
            reason: the reason, such as ``EndReason.WORKER_LOST`` or ``EndReason.ABANDONED``.
            lost: True to count it as a loss; False if the episode was only cancelled.

        Returns:
            The broken group if this closes it.
        """
        return self.execute(GiveBack(ticket_id, reason, lost))

    def renew(self, ticket_id: str) -> bool:
        """Renew a ticket's lease.

        Returns:
            True if the ticket is still outstanding; otherwise, the episode does not have to finish.
        """
        return self.execute(Renew(ticket_id))

    def evolve(self) -> RoundResult | None:
        """Run the due round, or wait for the running one. Return None if there is no round."""
        return self.execute(Evolve())

    def sweep(self) -> int:
        """Reclaim tickets and slots whose leases have expired, as most other calls do first.

        Returns:
            Number of expired leases.
        """
        return self.execute(Sweep())

    def close_spent_step(self) -> bool:
        """Close an automatically opened step that has no tickets left.

        The next ``take`` would also close the step. Closed now, its groups can start a round first.

        Returns:
            True if a step was closed.
        """
        return self.execute(CloseSpentStep())

    @property
    @abstractmethod
    def is_evolving(self) -> bool:
        """True if a round is running or waiting to be applied."""

    @property
    @abstractmethod
    def ticket_counts(self) -> dict[str, int]:
        """Counts of tickets by event, and of dropped reports by reason."""

    @property
    @abstractmethod
    def outstanding_tickets(self) -> tuple[Ticket, ...]:
        """The tickets that have been neither reported nor returned, oldest first."""

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Return the curriculum's metrics."""

    @abstractmethod
    def seed_of(self, ticket: Ticket) -> int:
        """Return a ticket's env seed, derived from the stream, the group and the position."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the full state of the stream as JSON."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`; earlier tickets become invalid."""
