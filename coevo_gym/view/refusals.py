"""Request errors, each with a status and a message that explains what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from coevo_gym.view.rows import Shape


class ApiProblem(Shape):
    """An error response.

    Attributes:
        error: ``BadRequest``, ``NotFound``, ``Damaged``, ``Refused`` or ``Failed``.
        message: description of the error: what happened, with which value, and what to do.
        places: paths of existing pages to suggest instead, such as ``runs/quickstart``.
    """

    error: Literal["BadRequest", "NotFound", "Damaged", "Refused", "Failed"]
    message: str
    places: tuple[str, ...] = ()


class Refusal(Exception):
    """Base class for errors that abort a request. The message is shown to the user.

    Attributes:
        status: HTTP status of the response.
        error: kind of error, see :class:`~coevo_gym.view.refusals.ApiProblem`.
    """

    status: ClassVar[int]
    error: ClassVar[Literal["BadRequest", "NotFound", "Damaged"]]

    def to_problem(self) -> ApiProblem:
        """Return the error response."""
        return ApiProblem(error=self.error, message=str(self))


class BadRequest(Refusal):
    """An error for an invalid parameter."""

    status, error = 400, "BadRequest"


class NotFound(Refusal):
    """An error for a missing resource.

    Args:
        message: the message.
        places: paths of existing pages to suggest instead.
    """

    status, error = 404, "NotFound"

    def __init__(self, message: str, places: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.places = tuple(places)

    def to_problem(self) -> ApiProblem:
        """Return the error response, including suggested pages."""
        return super().to_problem().model_copy(update={"places": self.places})


class Damaged(Refusal):
    """An error for a run or an evaluation that cannot be read."""

    status, error = 409, "Damaged"
