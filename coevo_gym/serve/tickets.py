"""The tickets API, through which trusted workers get tasks and report their episodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from coevo_gym.core.errors import CoevoError, StoreError
from coevo_gym.core.seams import Later, Ticket
from coevo_gym.core.trajectory import EndReason
from coevo_gym.serve.session import JournaledSession

RETRY_AFTER_S = 0.5
Name = Annotated[str, Field(min_length=1, max_length=200)]
Lost = Literal["abandoned", "worker_lost", "model_lost"]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Nothing(_Message):
    """An empty message."""


class Take(_Message):
    """A request for a ticket.

    Attributes:
        request: a unique name, so that the call can be retried safely.
        policy_version: version of the policy that will act.
        slot: id shared by the copies of one row; None for the next position in any group.
    """

    request: Name
    policy_version: int = Field(default=0, ge=0)
    slot: Name | None = None


class Report(_Message):
    """A request to report an episode.

    Attributes:
        ticket: id of the ticket.
        trajectory: the episode, as written by ``trajectory_to_json``.
    """

    ticket: Name
    trajectory: dict[str, Any]


class GiveBack(_Message):
    """A request to return a ticket whose episode will not be finished.

    Attributes:
        ticket: id of the ticket.
        reason: reason for the return.
    """

    ticket: Name
    reason: Lost = "abandoned"


class Renew(_Message):
    """A request to renew a ticket's lease.

    Attributes:
        ticket: id of the ticket.
    """

    ticket: Name


class Load(_Message):
    """A request to restore a state returned by ``save``.

    Attributes:
        state: the state to restore.
    """

    state: dict[str, Any]


def tickets_face(session: JournaledSession) -> list[Route]:
    """Return the routes of the tickets API; see docs/serve.md for its messages."""

    def take(message: Take) -> dict[str, Any]:
        found = session.take(
            request=message.request, policy_version=message.policy_version, slot=message.slot
        )
        if isinstance(found, Later):
            return {"later": found.reason, "retry_after_s": RETRY_AFTER_S}
        return {"ticket": ticket_to_json(found, session.seed_of(found))}

    def report(message: Report) -> dict[str, Any]:
        return {"ended": session.report(message.ticket, message.trajectory)}

    def give_back(message: GiveBack) -> dict[str, Any]:
        return {"ended": session.give_back(message.ticket, EndReason(message.reason))}

    def renew(message: Renew) -> dict[str, Any]:
        return {"out": session.renew(message.ticket), "lease_s": session.lease_s}

    def save(message: Nothing) -> dict[str, Any]:
        return {"state": session.state_dict()}

    def load(message: Load) -> dict[str, Any]:
        session.load_state_dict(message.state)
        return {}

    def metrics(message: Nothing) -> dict[str, Any]:
        return {"metrics": session.metrics()}

    calls: dict[str, tuple[type[_Message], Callable[[Any], dict[str, Any]]]] = {
        "take": (Take, take),
        "report": (Report, report),
        "give_back": (GiveBack, give_back),
        "renew": (Renew, renew),
        "save": (Nothing, save),
        "load": (Load, load),
        "metrics": (Nothing, metrics),
    }
    # One thread is enough and cheapest, because the session handles calls one after the other.
    thread = ThreadPoolExecutor(1, thread_name_prefix="tickets")
    return [
        Route(f"/tickets/{name}", _endpoint(message, call, thread), methods=["POST"])
        for name, (message, call) in calls.items()
    ]


def ticket_to_json(ticket: Ticket, seed: int) -> dict[str, Any]:
    """Convert a ticket and the env seed of its episode to a JSON message."""
    return {
        "id": ticket.id,
        "group_id": ticket.group_id,
        "index": ticket.index,
        "policy_version": ticket.policy_version,
        "seed": seed,
        "task_id": ticket.task.id,
        "task": ticket.task.model_dump(mode="json"),
    }


def _endpoint(
    message: type[_Message], call: Callable[[Any], Mapping[str, Any]], thread: Executor
) -> Callable[[Request], Any]:
    def answer(body: bytes) -> Response:
        """Return the response to a request. It runs in a thread because it waits for the disk."""
        try:
            return JSONResponse(call(message.model_validate_json(body or b"{}")))
        except ValidationError as error:
            problems = json.loads(error.json(include_url=False, include_input=False))
            return _problem("ValidationError", f"{message.__name__}: {problems}", 422)
        except StoreError as error:
            return _problem("StoreError", str(error), 503)
        except CoevoError as error:
            return _problem(type(error).__name__, str(error), 422)

    async def endpoint(request: Request) -> Response:
        body = await request.body()
        return await asyncio.get_running_loop().run_in_executor(thread, answer, body)

    return endpoint


def _problem(kind: str, message: str, status: int) -> JSONResponse:
    return JSONResponse({"error": kind, "message": message}, status)
