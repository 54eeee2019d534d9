"""What pages in a browser need of a server: a guard, strict headers, and an end that is quick.

Whatever is served here is for the person at this machine: it listens on loopback alone, answers
only who names this machine as host, refuses what a page from elsewhere sends, and lets its own
pages load and say nothing but to itself.
"""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from coevo_gym.core.errors import ConfigError
from coevo_gym.provision import extra_advice

if TYPE_CHECKING:
    from starlette.types import ASGIApp

STATIC = Path(__file__).parent / "static/"
"""The pages' scripts and styles."""
LOOPBACK = "127.0.0.1"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of every answer: no script in a page's text, no network but this."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""What keeps a page to itself; in every answer, refusals included."""


def require_server(command: str) -> None:
    """Make sure that what serves pages is installed.

    Raises:
        ImportError: if it is not; the message has the command that installs it.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(f"`{command}` needs more: {error}. {extra_advice('serve')}.") from error


def listen_here(port: int) -> socket.socket:
    """A socket that listens on this machine alone; port 0 takes one that is free.

    Raises:
        ConfigError: if the port is taken.
    """
    try:
        return socket.create_server((LOOPBACK, port), backlog=128)
    except OSError as error:
        raise ConfigError(
            f"Cannot listen on {LOOPBACK} port {port}: {error.strerror or error}. Choose another "
            "--port, or 0 for any that is free."
        ) from error


def guarded(app: ASGIApp, *, body_bytes: int = 1024) -> ASGIApp:
    """An app behind the guard of all our servers, whose every answer has :data:`HEADERS`.

    Args:
        app: it.
        body_bytes: largest body of a request.
    """
    from coevo_gym.serve.guard import Guard
    from coevo_gym.serve.tokens import Tokens

    advice = f"It is for this machine alone: open http://{LOOPBACK} and the port here."
    guard = Guard(app, tokens=Tokens(), hosts=(), body_bytes=body_bytes, advice=advice)
    return _headed(guard, HEADERS.items())


def serve(
    app: ASGIApp,
    listening: socket.socket,
    *,
    stopping: threading.Event | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        app: what is served, see :func:`guarded`.
        listening: where, see :func:`listen_here`.
        stopping: set when it is to end, so that answers that never end can.
        ready: called when browsers may come.

    Raises:
        KeyboardInterrupt: after it has ended, if that was by SIGINT.
    """
    import uvicorn

    from coevo_gym.serve.limits import connection_bounds

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if stopping is not None:
                stopping.set()
            super().handle_exit(sig, frame)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=3,
        server_header=False,
        date_header=False,
        **connection_bounds(),
    )
    Server(config).run(sockets=[listening])


def open_browser(url: str) -> bool:
    """Open a page in the person's browser, if there is one; returns whether there is."""
    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False


def _headed(app: ASGIApp, headers: Iterable[tuple[str, str]]) -> ASGIApp:
    """Adds headers to every answer, in place of those of the same name."""
    raw = [(name.encode(), value.encode()) for name, value in headers]
    names = {name for name, _ in raw}

    async def call(scope: Any, receive: Any, send: Any) -> None:
        async def headed(message: Any) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message.get("headers", ()) if pair[0] not in names]
                message = {**message, "headers": [*kept, *raw]}
            await send(message)

        await app(scope, receive, headed)

    return call
