"""What it takes to carry out a session's calls again from their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from coevo_gym.core.errors import TaskError
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.seams import Ticket
from coevo_gym.core.trajectory import Trajectory
from coevo_gym.core.trajectory_json import trajectory_from_json


class Found:
    """An evolver whose round has been carried out already.

    Attributes:
        result: what it found.
    """

    def __init__(self) -> None:
        self.result: RoundResult | None = None

    def run(self, round: Round) -> RoundResult:
        """What it found."""
        assert self.result is not None
        return self.result


def read_trajectory(data: dict[str, Any]) -> Trajectory:
    """An episode from its JSON.

    Raises:
        TaskError: if it is none.
    """
    try:
        return trajectory_from_json(data)
    except ValidationError as error:
        raise TaskError(f"This is not the JSON of a trajectory: {error}") from error


def is_ticket(answer: object, body: Mapping[str, Any]) -> bool:
    """Whether a call was answered by the ticket that is in the journal."""
    mine = isinstance(answer, Ticket) and (answer.id, answer.task.id)
    return mine == (body["ticket"], body["task"])
