"""Request errors, each with a status and a message that says what to do."""

from __future__ import annotations

from typing import ClassVar, Literal

from coevo_gym.web.view.shapes.base import Problem


class Refusal(Exception):
    """A request that fails. The message is for the user.

    Attributes:
        status: HTTP status of the response.
        error: kind of error, see :class:`~coevo_gym.web.view.shapes.base.Problem`.
    """

    status: ClassVar[int]
    error: ClassVar[Literal["BadRequest", "NotFound", "Damaged"]]

    def to_problem(self) -> Problem:
        """Return the error response."""
        return Problem(error=self.error, message=str(self))


class BadRequest(Refusal):
    """An invalid parameter."""

    status, error = 400, "BadRequest"


class NotFound(Refusal):
    """A missing resource."""

    status, error = 404, "NotFound"


class Damaged(Refusal):
    """A run or an evaluation that cannot be read."""

    status, error = 409, "Damaged"
