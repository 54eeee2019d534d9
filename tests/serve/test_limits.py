"""Connections on which nothing is asked, against a real uvicorn server."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http import auto
from uvicorn.protocols.http.h11_impl import H11Protocol
from websockets.sync.client import connect

from coevo_gym.serve.limits import AHEAD, HEAD_BYTES, bounded_protocol
from coevo_gym.serve.server import listen

WAIT_S = 60
HALF = b"GET / HTTP/1.1\r\nHost: local"
WHOLE = HALF + b"host\r\n\r\n"
SLOW = WHOLE.replace(b"/ ", b"/slow ")
LARGE = WHOLE.replace(b"/ ", b"/large ")
LARGE_BYTES = 24 << 20
WITH_BODY = WHOLE.replace(b"\r\n\r\n", b"\r\nContent-Length: 99\r\n\r\n")


@pytest.fixture(params=["installed", "h11"], autouse=True)
def _protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "h11":
        monkeypatch.setattr(auto, "AutoHTTPProtocol", H11Protocol)


class App:
    """Answers what asks for /slow when it may, all else at once; repeats what a WebSocket says.

    Attributes:
        asked: released whenever /slow is asked for, and whenever /large has been answered.
        go: lets it answer.
    """

    def __init__(self) -> None:
        self.asked, self.go = threading.Semaphore(0), threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            while (message := await receive())["type"] == "websocket.receive":
                await send({"type": "websocket.send", "text": message["text"]})
            return
        if scope["path"] == "/slow":
            self.asked.release()
            await asyncio.to_thread(self.go.wait, WAIT_S)
        large = scope["path"] == "/large"
        body = b"-" * (LARGE_BYTES if large else 0) + b"ok"
        length = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": body})
        if large:
            self.asked.release()


@contextmanager
def server(most: int = 100, head_s: float = WAIT_S) -> Iterator[tuple[int, App]]:
    """A server in a thread: its port, and what it serves."""
    app = App()
    protocol = bounded_protocol(most, head_s)
    config = uvicorn.Config(app, http=protocol, lifespan="off", log_level="error")
    running = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1], app
        finally:
            app.go.set()
            running.should_exit = True
            thread.join(WAIT_S)
            assert not thread.is_alive()


def send_bytes(port: int, data: bytes) -> socket.socket:
    """A connection on which this was sent."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    connection.sendall(data)
    return connection


def answer(connection: socket.socket, *, n: int = 1, pause_s: float = 0.0) -> bytes:
    """What a server sends until it is done or hangs up; b"" if it only hangs up.

    Args:
        connection: the connection.
        n: number of answers to wait for.
        pause_s: time after each read of up to 512 KiB.
    """
    data = bytearray()
    try:
        while data.count(b"ok") < n and (part := connection.recv(1 << 19)):
            data += part
            time.sleep(pause_s)
    except ConnectionResetError:
        pass
    return bytes(data)


def test_a_slow_request_head_times_out_but_a_slow_answer_does_not() -> None:
    with server(head_s=0.5) as (port, app), ExitStack() as stack:
        slow, idle, unread, half, silent = (
            stack.enter_context(send_bytes(port, data))
            for data in (SLOW, WHOLE, WITH_BODY, HALF, b"")
        )
        client = stack.enter_context(connect(f"ws://127.0.0.1:{port}/"))
        for connection, more in ((idle, HALF), (unread, b"a")):
            assert answer(connection).endswith(b"ok")
            connection.sendall(more)
        assert {answer(each) for each in (idle, unread, half, silent)} == {b""}
        client.send("still here")
        assert client.recv(WAIT_S) == "still here"
        app.go.set()
        assert answer(slow).endswith(b"ok")


def test_a_too_large_request_head_is_refused() -> None:
    with server() as (port, _), send_bytes(port, HALF) as connection:
        try:
            for _ in range(HEAD_BYTES >> 10):
                connection.sendall(b"a" * 1024)
            connection.sendall(b"a" * 1024)
        except (BrokenPipeError, ConnectionResetError):
            return
        assert b"200 OK" not in answer(connection)


def test_too_many_connections_close_the_longest_waiting_one() -> None:
    with server(most=8) as (port, app), ExitStack() as stack:
        slow = stack.enter_context(send_bytes(port, SLOW))
        assert app.asked.acquire(timeout=WAIT_S)
        halves = [stack.enter_context(send_bytes(port, HALF)) for _ in range(24)]
        with send_bytes(port, WHOLE) as asking:
            assert answer(asking).endswith(b"ok")
        assert {answer(half) for half in halves[:17]} == {b""}
        halves[-1].sendall(WHOLE.removeprefix(HALF))
        assert answer(halves[-1]).endswith(b"ok")
        app.go.set()
        assert answer(slow).endswith(b"ok")


def test_a_new_connection_is_refused_if_all_others_await_answers() -> None:
    with (
        server(most=2) as (port, app),
        send_bytes(port, SLOW) as one,
        send_bytes(port, SLOW) as another,
    ):
        assert all(app.asked.acquire(timeout=WAIT_S) for _ in range(2))
        with send_bytes(port, b"") as refused:
            assert answer(refused) == b""
        app.go.set()
        assert answer(one).endswith(b"ok")
        assert answer(another).endswith(b"ok")


def test_too_many_pipelined_requests_close_the_connection() -> None:
    with server() as (port, app), ExitStack() as stack:
        few = stack.enter_context(send_bytes(port, SLOW + WHOLE * AHEAD))
        assert app.asked.acquire(timeout=WAIT_S)
        many = stack.enter_context(send_bytes(port, SLOW))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            many.sendall(WHOLE * (1 << 20))
        app.go.set()
        assert answer(few, n=1 + AHEAD).count(b"200 OK") == 1 + AHEAD


def test_only_a_client_that_does_not_read_its_answer_is_disconnected() -> None:
    with server(head_s=1) as (port, app), ExitStack() as stack:
        unread, read = (stack.enter_context(send_bytes(port, LARGE)) for _ in range(2))
        assert all(app.asked.acquire(timeout=WAIT_S) for _ in range(2))
        assert len(answer(read, pause_s=0.06)) > LARGE_BYTES
        assert len(answer(unread)) < LARGE_BYTES
