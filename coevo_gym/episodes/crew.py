"""Worker threads for episodes, with one job per episode at a time."""

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
    """A thread pool that runs one job per item and returns the items as their jobs finish.

    On exit it waits for running jobs, so that no engine is closed while a thread uses it.

    Args:
        size: maximum number of items in progress.
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
        """Run a job for an item.

        Args:
            item: the item that :meth:`back` returns.
            job: the job to run.
            alone: True to run the job one at a time with other such jobs. Engines share data that
                the first of them loads; in parallel, all of them would load it.
        """
        future = self._threads.submit(partial(self._do_alone, job) if alone else job)
        future.add_done_callback(lambda done: self._done.put((item, done)))

    def back(self, patience_s: float | None = None) -> list[tuple[ItemT, ResultT]]:
        """Return all items whose jobs have finished; an error in a job is raised here.

        Args:
            patience_s: maximum wait for the first item in seconds; None to wait forever.
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
