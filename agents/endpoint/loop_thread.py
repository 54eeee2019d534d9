"""An event loop in its own thread, with which synchronous code can run coroutines."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop thread for callers without a loop, or inside one (a notebook).

    The loop lives until :meth:`close`, or until the object is garbage-collected, so that objects
    bound to the loop, such as a connection pool, serve many calls. Thread-safe.

    Args:
        at_end: function awaited in the loop after all running tasks were cancelled.
    """

    def __init__(self, at_end: Callable[[], Awaitable[None]]) -> None:
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(
            target=_serve, args=(self._loop, at_end), name="coevo-loop", daemon=True
        )
        thread.start()
        self._lock = threading.Lock()
        self._stop = weakref.finalize(self, _stop, self._loop, thread)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for it; an interrupted wait cancels it before returning.

        Raises:
            concurrent.futures.CancelledError: if the loop is or becomes closed.
        """
        done: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(partial(_hand_over, done))

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:
                work.close()
                done.cancel()

        try:
            with self._lock:
                if not self._stop.alive:
                    raise CancelledError
                self._loop.call_soon_threadsafe(start)
            return done.result()
        except BaseException:
            with self._lock:
                if self._stop.alive:
                    self._loop.call_soon_threadsafe(cancel)
                elif not tasks:
                    cancel()
            with suppress(CancelledError):
                done.exception()
            raise

    def close(self) -> None:
        """Cancel running tasks and end the thread; a second call does nothing."""
        with self._lock:
            self._stop()


def _hand_over(done: Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        done.cancel()
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())


def _serve(loop: asyncio.AbstractEventLoop, at_end: Callable[[], Awaitable[None]]) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(_wind_up(at_end))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _wind_up(at_end: Callable[[], Awaitable[None]]) -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await at_end()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    # A task inside the thread itself may drop the last reference.
    if thread is not threading.current_thread():
        thread.join()
