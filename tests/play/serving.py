"""The pages behind a socket, in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from coevo_gym.view.play.episodes import EpisodeManager
from coevo_gym.view.play.server import PlayRoutes, make_app
from coevo_gym.view.shell import listen_on_loopback


@contextmanager
def serve_pages(manager: EpisodeManager) -> Iterator[str]:
    """Serves a manager; gives the address of its first page. The manager is closed at the end."""
    config = uvicorn.Config(
        make_app(PlayRoutes(manager)), log_level="warning", lifespan="on", ws="none"
    )
    server = uvicorn.Server(config)
    with listen_on_loopback(0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
