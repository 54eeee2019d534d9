"""The viewer's read-only server: pages, their JSON, and change notifications.

``/api/live`` sends a message for each changed run, table or evaluation, with ``{"run": id}``,
``{"table": id}`` or ``{"eval": id}`` as its data. The message contains nothing else; the page
requests new data itself. A periodic comment reveals broken connections.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from coevo_gym.store.progress_file import PROGRESS
from coevo_gym.view.api import json_response
from coevo_gym.view.collection import RunCollection, Stamps, file_stamps
from coevo_gym.view.refusals import ApiProblem, Refusal
from coevo_gym.view.shell import STATIC, guard_app

logger = logging.getLogger(__name__)

_JSON = "application/json"
_PREFIX = "/api/"
EVERY_S = 1.0
_COMMENT_S = 15.0
State = Mapping[tuple[str, str], Stamps]


def make_app(collection: RunCollection, stopping: threading.Event | None = None) -> ASGIApp:
    """Create the ASGI app that shows runs and evaluations."""
    stop = stopping or threading.Event()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        stop.set()

    async def page(_: Request) -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    async def api(request: Request) -> Response:
        raw = request.scope.get("raw_path") or request.url.path.encode()
        path = raw.decode("latin-1").partition("?")[0].removeprefix(_PREFIX)
        query = request.scope["query_string"].decode("latin-1")
        try:
            return Response(
                await run_in_threadpool(json_response, collection, path, query), media_type=_JSON
            )
        except Refusal as refusal:
            return _error_response(refusal.to_problem(), refusal.status)
        except Exception as error:
            logger.exception("the viewer failed at %s", unquote(path)[:200])
            message = f"The viewer failed: {type(error).__name__}. See its terminal for details."
            return _error_response(ApiProblem(error="Failed", message=message), 500)

    async def live(_: Request) -> Response:
        return StreamingResponse(event_stream(collection, stop), media_type="text/event-stream")

    app = Starlette(
        routes=[
            Route("/", page),
            Route(f"{_PREFIX}live", live),
            Route(f"{_PREFIX}{{path:path}}", api),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: _answer_http_error},
    )
    return guard_app(app)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """Return an HTTP error in the same format as all other errors."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        message = f"The path {request.url.path[:200]} does not exist."
        return _error_response(ApiProblem(error="NotFound", message=message), 404)
    message = "The viewer only accepts GET requests." if error.status_code == 405 else error.detail
    response = _error_response(ApiProblem(error="Refused", message=message), error.status_code)
    response.headers.update(error.headers or {})
    return response


def _error_response(problem: ApiProblem, status: int) -> Response:
    return Response(problem.model_dump_json(), status, media_type=_JSON)


def stamps_by_folder(collection: RunCollection) -> State:
    """Return times and sizes of the files of runs, tables and evaluations, to detect changes."""
    runs = {
        ("run", id): file_stamps(
            *(run.metrics, run.database, run.summary, run.path / PROGRESS),
            run.database.with_name(f"{run.database.name}-wal"),
        )
        for id, run in collection.library.runs().items()
    }
    evals = {
        ("eval", id): file_stamps(folder.results, folder.summary)
        for id, folder in collection.library.evals().items()
    }
    tables = {
        ("table", id): file_stamps(table.file) for id, table in collection.library.tables().items()
    }
    return {**runs, **tables, **evals}


def changes(before: State, now: State) -> list[dict[str, str]]:
    """Return the new, removed and changed runs, tables and evaluations as event data."""
    return [
        {kind: id}
        for kind, id in {**before, **now}
        if before.get((kind, id)) != now.get((kind, id))
    ]


async def event_stream(
    collection: RunCollection, stopping: threading.Event
) -> AsyncIterator[bytes]:
    """Yield the event stream of ``/api/live`` until ``stopping`` is set."""
    known = await run_in_threadpool(stamps_by_folder, collection)
    yield b"retry: 2000\n\n"
    last_sent = looked = time.monotonic()
    while not stopping.is_set():
        await asyncio.sleep(0.1)
        now = time.monotonic()
        if now - looked < EVERY_S:
            continue
        looked = now
        state = await run_in_threadpool(stamps_by_folder, collection)
        for change in changes(known, state):
            yield f"data: {json.dumps(change)}\n\n".encode()
            last_sent = now
        known = state
        if now - last_sent >= _COMMENT_S:
            yield b": here\n\n"
            last_sent = now
