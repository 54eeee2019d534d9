"""Server-sent events for changes to runs and evaluations, and a thread that updates indexes.

``/api/live`` sends a message for each changed run or evaluation, with ``{"run": id}`` or ``{"eval":
id}`` as its data. The message contains nothing else; the page requests new data itself. A periodic
comment reveals broken connections.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Mapping

from coevo_gym.core.errors import CoevoError
from coevo_gym.store.progress import PROGRESS
from coevo_gym.view.index.index import Index, Stamps, stamps
from coevo_gym.view.refusals import Refusal
from coevo_gym.view.shelf import Shelf

logger = logging.getLogger(__name__)

EVERY_S = 1.0
_COMMENT_S = 15.0
_AT_ONCE = 300
State = Mapping[tuple[str, str], Stamps]


def state_of(shelf: Shelf) -> State:
    """Return modification times and sizes of run and evaluation files, to detect changes."""
    runs = {
        ("run", id): stamps(
            *(run.metrics, run.database, run.summary, run.path / PROGRESS),
            run.database.with_name(f"{run.database.name}-wal"),
        )
        for id, run in shelf.library.runs().items()
    }
    evals = {
        ("eval", id): stamps(shown.results, shown.summary)
        for id, shown in shelf.library.evals().items()
    }
    return {**runs, **evals}


def changes(before: State, now: State) -> list[dict[str, str]]:
    """Return the new, removed and changed runs and evaluations as event data."""
    return [
        {kind: id}
        for kind, id in {**before, **now}
        if before.get((kind, id)) != now.get((kind, id))
    ]


async def events(shelf: Shelf, stopping: threading.Event) -> AsyncIterator[bytes]:
    """Yield the event stream of ``/api/live`` until ``stopping`` is set."""
    import asyncio

    from starlette.concurrency import run_in_threadpool

    known = await run_in_threadpool(state_of, shelf)
    yield b"retry: 2000\n\n"
    said = looked = time.monotonic()
    while not stopping.is_set():
        await asyncio.sleep(0.1)
        now = time.monotonic()
        if now - looked < EVERY_S:
            continue
        looked = now
        state = await run_in_threadpool(state_of, shelf)
        for change in changes(known, state):
            yield f"data: {json.dumps(change)}\n\n".encode()
            said = now
        known = state
        if now - said >= _COMMENT_S:
            yield b": here\n\n"
            said = now


class Reading:
    """A background thread that indexes the episodes of the runs being viewed.

    Args:
        shelf: the runs and evaluations.
        stopping: event that stops the thread.
    """

    def __init__(self, shelf: Shelf, stopping: threading.Event) -> None:
        self._shelf, self._stopping = shelf, stopping
        self._thread = threading.Thread(target=self._run, name="reading", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout_s: float = 5.0) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            more = [index for index in self._shelf.indexes() if self._read(index)]
            if not more:
                self._stopping.wait(EVERY_S)

    def _read(self, index: Index) -> bool:
        try:
            return index.read_on(_AT_ONCE)
        except (CoevoError, Refusal) as error:
            logger.debug("not read: %s", error)  # requests for this run report the error
            return False
