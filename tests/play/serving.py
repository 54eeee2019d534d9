"""The pages behind a socket, in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from coevo_gym.view.play.desk import Desk
from coevo_gym.view.play.server import PlayFace, make_app
from coevo_gym.view.shell import listen_here


@contextmanager
def serving(desk: Desk) -> Iterator[str]:
    """Serves a desk; gives the address of its first page. The desk is closed at the end."""
    config = uvicorn.Config(make_app(PlayFace(desk)), log_level="warning", lifespan="on", ws="none")
    server = uvicorn.Server(config)
    with listen_here(0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
