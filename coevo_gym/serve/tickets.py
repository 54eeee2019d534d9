"""The tickets API, through which trusted workers get tasks and report their episodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from coevo_gym.core.errors import CoevoError, StoreError
from coevo_gym.core.seams import Later
from coevo_gym.core.trajectory import EndReason
from coevo_gym.curricula.session.session_calls import (
    CloseSpentStep,
    GiveBack,
    Name,
    Renew,
    Report,
    Sweep,
    Take,
    group_to_json,
    ticket_to_json,
)
from coevo_gym.serve.journaled_session import JournaledSession

RETRY_AFTER_S = 0.5


@dataclass(frozen=True, kw_only=True)
class TakeByName(Take):
    """A :class:`Take` whose ``request`` is required, so that a client can retry it safely."""

    request: Name = field()


@dataclass(frozen=True, kw_only=True)
class ReportOrGroup(Report):
    """A :class:`Report` whose response contains the group that it closes, if ``group`` is True."""

    group: bool = False


@dataclass(frozen=True, kw_only=True)
class GiveBackLost(GiveBack):
    """A :class:`GiveBack` that allows only the reasons for lost episodes.

    Its response contains the group that it closes, if ``group`` is True.
    """

    reason: Literal[
        EndReason.ABANDONED, EndReason.WORKER_LOST, EndReason.MODEL_LOST, EndReason.CAPPED
    ] = EndReason.ABANDONED
    group: bool = False


@dataclass(frozen=True)
class Collect:
    """A request for the result of the latest round.

    Attributes:
        request: unique name for this call, so that a client can retry it safely.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    request: Name


@dataclass(frozen=True)
class Nothing:
    """An empty message."""

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Load(Nothing):
    """A request to restore a state returned by ``save``.

    Attributes:
        state: the state to restore.
    """

    state: dict[str, Any]


def ticket_routes(session: JournaledSession) -> list[Route]:
    """Return the routes of the tickets API; see docs/serve.md for its messages."""

    def take(call: TakeByName) -> dict[str, Any]:
        answer = session.execute(call)
        if isinstance(answer, Later):
            return _later_to_json(answer)
        seed, task_id = session.seed_of(answer), answer.task.id
        return {"ticket": {**ticket_to_json(answer), "seed": seed, "task_id": task_id}}

    def end(call: ReportOrGroup | GiveBackLost) -> dict[str, Any]:
        group = session.execute(call)
        ended = {"ended": session.how_ended(call.ticket)}
        return {**ended, "group": group and group_to_json(group)} if call.group else ended

    def renew(call: Renew) -> dict[str, Any]:
        return {"out": session.execute(call), "lease_s": session.lease_s}

    def evolve(message: Collect) -> dict[str, Any]:
        answer = session.collect_round(message.request)
        if isinstance(answer, Later):
            return _later_to_json(answer)
        return {"result": answer and answer.model_dump(mode="json")}

    def sweep(call: Sweep) -> dict[str, Any]:
        return {"expired": session.execute(call)}

    def close_spent_step(call: CloseSpentStep) -> dict[str, Any]:
        return {"closed": session.execute(call)}

    def about(_: Nothing) -> dict[str, Any]:
        from coevo_gym import __version__

        return {"version": __version__, **session.about}

    def status(_: Nothing) -> dict[str, Any]:
        return {"is_evolving": session.is_evolving, "ticket_counts": session.ticket_counts}

    def outstanding(_: Nothing) -> dict[str, Any]:
        return {"tickets": [ticket_to_json(ticket) for ticket in session.outstanding_tickets]}

    def save(_: Nothing) -> dict[str, Any]:
        return {"state": session.state_dict()}

    def load(message: Load) -> dict[str, Any]:
        session.load_state_dict(message.state)
        return {}

    def metrics(_: Nothing) -> dict[str, Any]:
        return {"metrics": session.metrics()}

    answers: dict[str, tuple[type[Any], Callable[[Any], dict[str, Any]]]] = {
        "take": (TakeByName, take),
        "report": (ReportOrGroup, end),
        "give_back": (GiveBackLost, end),
        "renew": (Renew, renew),
        "evolve": (Collect, evolve),
        "sweep": (Sweep, sweep),
        "close_spent_step": (CloseSpentStep, close_spent_step),
        "about": (Nothing, about),
        "status": (Nothing, status),
        "outstanding": (Nothing, outstanding),
        "save": (Nothing, save),
        "load": (Load, load),
        "metrics": (Nothing, metrics),
    }
    # One thread is enough and cheapest, because the session handles calls one after the other.
    thread = ThreadPoolExecutor(1, thread_name_prefix="tickets")
    return [
        Route(
            f"/tickets/{name}",
            _make_endpoint(TypeAdapter(message), answer, thread),
            methods=["POST"],
        )
        for name, (message, answer) in answers.items()
    ]


def _later_to_json(later: Later) -> dict[str, Any]:
    return {"later": later.reason, "retry_after_s": RETRY_AFTER_S}


def _make_endpoint(
    message: TypeAdapter[Any], answer: Callable[[Any], Mapping[str, Any]], thread: Executor
) -> Callable[[Request], Any]:
    def respond(path: str, body: bytes) -> Response:
        """Return the response to a request. It runs in a thread because it waits for the disk."""
        try:
            return JSONResponse(answer(message.validate_json(body or b"{}")))
        except ValidationError as error:
            problems = json.loads(error.json(include_url=False, include_input=False))
            return _error_response("ValidationError", f"{path}: {problems}", 422)
        except StoreError as error:
            return _error_response("StoreError", str(error), 503)
        except CoevoError as error:
            return _error_response(type(error).__name__, str(error), 422)

    async def endpoint(request: Request) -> Response:
        body = await request.body()
        return await asyncio.get_running_loop().run_in_executor(
            thread, respond, request.url.path, body
        )

    return endpoint


def _error_response(kind: str, message: str, status: int) -> JSONResponse:
    return JSONResponse({"error": kind, "message": message}, status)
