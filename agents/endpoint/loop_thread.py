"""An event loop for an endpoint's requests, and an HTTP client that limits response sizes."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from http.cookiejar import DefaultCookiePolicy
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop in its own thread. Callers may run another loop, as notebooks do.

    The loop runs until :meth:`close`, or until the object is garbage-collected, so that objects
    bound to the loop, such as a connection pool, serve many calls. Thread-safe. ``at_end`` is
    awaited in the loop after all running tasks have been cancelled. A process created by a fork has
    no thread that runs the loop, so :meth:`run` must not be called there.
    """

    def __init__(self, at_end: Callable[[], Awaitable[None]]) -> None:
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(
            target=_run_loop, args=(self._loop, at_end), name="coevo-loop", daemon=True
        )
        thread.start()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._stop = weakref.finalize(self, _stop_loop, self._loop, thread, self._process)

    @property
    def is_forked(self) -> bool:
        """True in a process that was forked after the loop started."""
        return os.getpid() != self._process

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for its result. Interrupting the wait cancels the coroutine.

        Raises:
            concurrent.futures.CancelledError: if the loop is or becomes closed.
        """
        done: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(partial(_copy_outcome, done))

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

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the background. Cancelling the future cancels the coroutine."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel all asyncio tasks and stop the event loop's thread. Further calls do nothing.

        In a forked process, nothing happens.
        """
        if not self.is_forked:
            with self._lock:
                self._stop()


def _copy_outcome(done: Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        done.cancel()
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())


def _run_loop(loop: asyncio.AbstractEventLoop, at_end: Callable[[], Awaitable[None]]) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_tasks())
        loop.run_until_complete(at_end())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _cancel_tasks() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


def _stop_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, process: int) -> None:
    if os.getpid() != process:
        return  # a fork's copy: the pipe that wakes the loop is shared with the parent process
    loop.call_soon_threadsafe(loop.stop)
    # A task inside the thread itself may drop the last reference.
    if thread is not threading.current_thread():
        thread.join()


MAX_ANSWER_BYTES = 16 << 20
"""Maximum response body size in bytes, including errors; a long completion takes about 1 MB."""
_MAX_REDIRECTS = 5


class UnreadableAnswer(Exception):
    """Raised if a response's body was not read because it was compressed or too large."""


def make_bounded_client(openai: Any, direct: str = "") -> Any:
    """Create the HTTP client for ``openai.AsyncOpenAI(http_client=...)``, with openai's defaults.

    It requests uncompressed responses and rejects compressed responses, because a few kilobytes can
    expand to gigabytes. The bodies of redirects are not read at all. Cookies are neither kept nor
    sent. Requests raise :class:`UnreadableAnswer`, which some versions of ``openai`` wrap in an
    ``APIConnectionError``.

    Requests to ``direct``, a scheme and host, do not use a proxy from the environment.
    """

    class Client(openai.DefaultAsyncHttpxClient):  # type: ignore[misc]
        async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
            """Send a request and read its response. ``stream`` is ignored."""
            request.headers["accept-encoding"] = "identity"
            options["follow_redirects"] = False
            response = await super().send(request, stream=True, **options)
            try:
                for _ in range(_MAX_REDIRECTS):
                    if response.next_request is None:
                        break
                    await response.aclose()
                    response = await super().send(response.next_request, stream=True, **options)
                return await _read_response(response)
            finally:
                await response.aclose()

    client = Client(mounts={direct: None} if direct else None)
    client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
    return client


async def _read_response(response: Any) -> Any:
    """Return a response after reading its body, up to a size limit."""
    encoding = response.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise UnreadableAnswer(f"the response is compressed ({encoding[:40]!r})")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise UnreadableAnswer(f"the response is larger than {MAX_ANSWER_BYTES:,} bytes")
    headers = []
    for name, value in response.headers.raw:
        if name.lower() == b"content-type":
            value = value.partition(b";")[0]  # JSON is UTF-8; some charsets are not text encodings
        if name.lower() not in (b"content-encoding", b"content-length", b"transfer-encoding"):
            headers.append((name, value))
    return type(response)(
        response.status_code, headers=headers, content=bytes(body), request=response.request
    )
