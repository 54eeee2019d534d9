"""The server for the pages on which users play episodes."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from coevo_gym.core.errors import CoevoError
from coevo_gym.view.play.episodes import MAX_LIVE, EpisodeManager, NotPossible
from coevo_gym.view.shell import STATIC, guard_app

logger = logging.getLogger(__name__)

BODY_BYTES = 256 << 10
"""Maximum size of a request in bytes; envs truncate actions to 20,000 characters."""
TOKEN = "x-play-token"  # noqa: S105 (the name of a header)
ResultT = TypeVar("ResultT")
Answer = Callable[[Request], Awaitable[Response]]


class PlayRoutes:
    """Routes for the pages on which users play episodes.

    Every request must contain the token in the page, so only a browser that loaded the page from
    this server can play or watch. Engine operations run in threads that live as long as the server,
    because some engines stop with the thread that started them.

    Args:
        manager: manager of the episodes, closed by :meth:`close`.

    Attributes:
        token: the token in the page.
    """

    def __init__(self, manager: EpisodeManager) -> None:
        self.token = secrets.token_urlsafe(32)
        self._manager = manager
        self._threads = ThreadPoolExecutor(MAX_LIVE, thread_name_prefix="play")

    @property
    def routes(self) -> list[BaseRoute]:
        """Return the routes for the play page and for the requests that it sends."""
        game = "/api/play/games/{id}"
        return [
            Route("/", self._page),
            Route("/api/play", self._json_route(self._about)),
            Route("/api/play/tasks", self._json_route(self._list_tasks)),
            Route("/api/play/games", self._json_route(self._begin), methods=["POST"]),
            Route(game, self._json_route(self._episode_handler(self._manager.read_state))),
            Route(f"{game}/act", self._json_route(self._act), methods=["POST"]),
            Route(f"{game}/give-up", self._json_route(self._give_up), methods=["POST"]),
            Route(
                f"{game}/go-on",
                self._json_route(self._episode_handler(self._manager.resume)),
                methods=["POST"],
            ),
            Route(
                f"{game}/keep",
                self._json_route(self._episode_handler(self._manager.keep_demonstration)),
                methods=["POST"],
            ),
        ]

    async def close(self) -> None:
        """Close all episodes and stop their threads."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._manager.close)
        self._threads.shutdown(wait=True, cancel_futures=True)

    # Requests

    async def _page(self, request: Request) -> Response:
        html = (STATIC / "play.html").read_text(encoding="utf-8")
        return HTMLResponse(html.replace("{{ token }}", self.token))

    async def _about(self, request: Request) -> Any:
        return await self._run_in_thread(self._manager.about)

    async def _list_tasks(self, request: Request) -> Any:
        search, page = request.query_params.get("q", "")[:500], request.query_params.get("page", "")
        number = int(page) if page.isdecimal() and len(page) < 9 else 0
        return await self._run_in_thread(partial(self._manager.list_tasks, search, number))

    async def _begin(self, request: Request) -> Any:
        body = await _read_body(request)
        task = _require_text(body, "task") if body.get("task") is not None else None
        return await self._run_in_thread(partial(self._manager.begin, task))

    async def _act(self, request: Request) -> Any:
        body = await _read_body(request)
        act = partial(self._manager.act, request.path_params["id"], _require_text(body, "action"))
        return await self._run_in_thread(partial(act, _require_step(body)))

    async def _give_up(self, request: Request) -> Any:
        step = _require_step(await _read_body(request))
        return await self._run_in_thread(
            partial(self._manager.give_up, request.path_params["id"], step)
        )

    def _episode_handler(self, work: Callable[[str], Any]) -> Callable[[Request], Awaitable[Any]]:
        """Return a request handler that only needs the episode's id."""

        async def answer(request: Request) -> Any:
            return await self._run_in_thread(partial(work, request.path_params["id"]))

        return answer

    # Responses

    async def _run_in_thread(self, work: Callable[[], ResultT]) -> ResultT:
        """Run a function in a long-lived worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _json_route(self, answer: Callable[[Request], Awaitable[Any]]) -> Answer:
        """Return a route that checks the token and responds with JSON, even after an error."""

        async def route(request: Request) -> Response:
            token = request.headers.get(TOKEN, "")
            if not hmac.compare_digest(token.encode(), self.token.encode()):
                why = "This page belongs to a server that has stopped. Reload it."
                return JSONResponse({"message": why}, 403)
            try:
                return JSONResponse(await answer(request))
            except (HTTPException, ClientDisconnect):
                raise  # handled by the guard
            except NotPossible as error:
                return JSONResponse({"message": error.message, "state": error.state}, error.status)
            except CoevoError as error:
                return JSONResponse({"message": f"{error}"}, 409)
            except Exception as error:
                logger.exception("a page's request failed")
                return JSONResponse({"message": f"The server failed: {type(error).__name__}."}, 500)

        return route


def make_app(routes: PlayRoutes) -> ASGIApp:
    """Create the ASGI app that serves the pages behind the request guard."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await routes.close()

    pages = Mount("/static", StaticFiles(directory=STATIC))
    app = Starlette(routes=[*routes.routes, pages], lifespan=lifespan)
    return guard_app(app, body_bytes=BODY_BYTES)


async def _read_body(request: Request) -> dict[str, Any]:
    """Return the JSON object in the request body.

    Raises:
        NotPossible: if the body is not sent as JSON; a form on another site cannot send JSON.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise NotPossible(415, "The request body must be JSON, sent as application/json.")
    try:
        body = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError) as error:
        raise NotPossible(400, f"The request body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise NotPossible(400, "The request body must be a JSON object.")
    return body


def _require_text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise NotPossible(400, f"{name!r} must be a string.")
    return value


def _require_step(body: dict[str, Any]) -> int:
    value = body.get("step")
    if not isinstance(value, int) or isinstance(value, bool):
        raise NotPossible(400, "'step' must be a whole number.")
    return value
