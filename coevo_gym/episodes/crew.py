"""Threads that work for episodes, one job of each at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Generic, Self, TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Crew(Generic[ItemT, ResultT]):
    """Sends items out to have something done with them, and takes them back as that is done.

    At its end it waits for what is under way: no engine is closed while a thread is in it.

    Args:
        size: most items that are out at once.
    """

    def __init__(self, size: int) -> None:
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="episode")
        self._done: SimpleQueue[tuple[ItemT, Future[ResultT]]] = SimpleQueue()
        self._alone = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def send(self, item: ItemT, job: Callable[[], ResultT], *, alone: bool = False) -> None:
        """Have a job done for an item.

        Args:
            item: what comes back.
            job: what to do.
            alone: not beside another job that is to be done alone. Engines share what is read when
                the first of them begins; beside each other they would all read it.
        """
        future = self._threads.submit(partial(self._do_alone, job) if alone else job)
        future.add_done_callback(lambda done: self._done.put((item, done)))

    def back(self, patience_s: float | None = None) -> list[tuple[ItemT, ResultT]]:
        """Take all that is done; what a job raised is raised here.

        Args:
            patience_s: longest wait for the first item; None to wait for as long as it takes.
        """
        found = list[tuple[ItemT, Future[ResultT]]]()
        try:
            found.append(self._done.get(timeout=patience_s))
            while True:
                found.append(self._done.get_nowait())
        except Empty:
            return [(item, future.result()) for item, future in found]

    def _do_alone(self, job: Callable[[], ResultT]) -> ResultT:
        with self._alone:
            return job()
