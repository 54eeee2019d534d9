"""``coevo play --web``: serve the pages until Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from coevo_gym.cli.output import say, say_aside
from coevo_gym.core.task import Task
from coevo_gym.web.play.scores import Scores
from coevo_gym.web.play.source import PlaySource
from coevo_gym.web.shell import LOOPBACK, listen_here, open_browser, require_server, serve


def play_in_browser(
    source: PlaySource,
    demonstrations: Path,
    scores: Scores | None,
    first: Task | None,
    *,
    port: int,
    browser: bool,
    ready: Callable[[], None],
) -> None:
    """Serve the pages until SIGINT or SIGTERM.

    Args:
        source: the tasks to play.
        demonstrations: the file in which demonstrations are saved.
        scores: the folder in which the score is saved; None to keep no score.
        first: the task that the first page offers first.
        port: port to listen on; 0 for any free one.
        browser: open a browser.
        ready: called once the pages can be opened.

    Raises:
        ImportError: if the extra ``serve`` is not installed.
        ConfigError: if the port is taken.
    """
    require_server("coevo play --web")
    from coevo_gym.web.play.desk import Desk
    from coevo_gym.web.play.server import PlayFace, make_app

    _ = source.tasks  # reports a missing package here instead of on a page
    stopping = threading.Event()
    desk = Desk(source, demonstrations=demonstrations, scores=scores, first=first)
    with listen_here(port) as listening:
        url = f"http://{LOOPBACK}:{listening.getsockname()[1]}/"

        def opened() -> None:
            ready()
            say(f"play {source.name} at {url}")
            say_aside("reachable from this machine only · Ctrl-C stops it")
            if browser:
                threading.Thread(target=open_browser, args=(url,), daemon=True).start()

        def end() -> None:
            stopping.wait()
            desk.close()

        # Engines stop at once instead of finishing an answer that may take a minute.
        threading.Thread(target=end, daemon=True).start()
        serve(make_app(PlayFace(desk)), listening, stopping=stopping, ready=opened)
