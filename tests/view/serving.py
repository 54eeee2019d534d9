"""The viewer's own server, in a thread of the tests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from coevo_gym.view.collection import RunCollection
from coevo_gym.view.library import Library
from coevo_gym.view.safe import Reveal
from coevo_gym.view.server import make_app
from coevo_gym.view.shell import LOOPBACK, listen_on_loopback


@contextmanager
def serve_viewer(names: Sequence[str], reveal: Reveal = "") -> Iterator[str]:
    """Where these runs and evaluations, named by their folders, can be viewed meanwhile."""
    stopping, ready = threading.Event(), threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready.set()

    app = make_app(RunCollection(Library(names), reveal), stopping)
    server = Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=3))
    with listen_on_loopback(0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            if not ready.wait(60):
                raise TimeoutError("The viewer did not start within 60 s.")
            yield f"http://{LOOPBACK}:{listening.getsockname()[1]}"
        finally:
            stopping.set()
            server.should_exit = True
            thread.join(30)
