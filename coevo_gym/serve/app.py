"""The server's ASGI app, with the tickets API and the envs API behind shared access control."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any

from anyio.lowlevel import checkpoint
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from coevo_gym.core.errors import StoreError
from coevo_gym.serve.envs import EnvsFace
from coevo_gym.serve.guard import Guard
from coevo_gym.serve.limits import ServerLimits
from coevo_gym.serve.session import JournaledSession
from coevo_gym.serve.tickets import tickets_face
from coevo_gym.serve.tokens import Tokens

logger = logging.getLogger(__name__)

SWEEP_S = 1.0


def make_app(
    session: JournaledSession,
    envs: EnvsFace,
    *,
    tokens: Tokens = Tokens(),  # noqa: B008 (frozen)
    hosts: Collection[str] = (),
    limits: ServerLimits = ServerLimits(),  # noqa: B008 (frozen)
) -> ASGIApp:
    """Create the ASGI app that serves a session.

    Args:
        session: session to serve; the app closes it on shutdown.
        envs: the envs API.
        tokens: secrets that grant access.
        hosts: host names of the server.
        limits: limits on the resources that clients may use.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await checkpoint()  # import what threads need while files can still be opened
        sweeping = asyncio.create_task(_sweep(session))
        try:
            yield
        finally:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
            envs.close()
            await run_in_threadpool(session.close)

    app = Starlette(
        routes=[*tickets_face(session), *envs.routes],
        lifespan=lifespan,
        exception_handlers={HTTPException: _told},
    )
    return Guard(app, tokens=tokens, hosts=hosts, body_bytes=limits.body_bytes)


async def _sweep(session: JournaledSession) -> None:
    """Reclaim expired tickets at regular intervals, even without client requests."""
    while True:
        await asyncio.sleep(SWEEP_S)
        try:
            await run_in_threadpool(session.sweep)
        except StoreError as error:
            logger.error("%s", error)
            return  # every call reports this error from now on


async def _told(request: Request, error: Exception) -> Any:
    """Return an HTTP error in the same JSON format as all other errors."""
    assert isinstance(error, HTTPException)
    what = {404: f"There is no {request.url.path} here.", 405: "Send a POST."}
    message = what.get(error.status_code, error.detail)
    return JSONResponse({"error": "Refused", "message": message}, error.status_code)
