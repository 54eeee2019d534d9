"""Connections that send Python values over a socket between this package's processes.

Values are pickled, so both ends must trust each other. Model-written code never runs at either end;
it runs in a sandbox with a protocol of its own.
"""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_HEAD_BYTES = 8


class WireClosed(Exception):
    """The other end has closed the connection."""


@contextmanager
def _convert_errors() -> Iterator[None]:
    """Convert socket errors other than timeouts to :class:`WireClosed`."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError as error:
        raise WireClosed(str(error)) from error


class Wire:
    """One end of a stream socket that carries values and, occasionally, file descriptors.

    A call that raises leaves the wire unusable, because part of a value may be in transit.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def fileno(self) -> int:
        """Return the socket's file descriptor, for polling."""
        return self._socket.fileno()

    def send(self, value: Any, timeout_s: float | None = None) -> None:
        """Send a value to the other end of the connection.

        If it cannot be pickled, nothing is sent, and the connection stays usable. ``timeout_s``
        limits the wait for the other end to read; None waits forever.

        Raises:
            WireClosed: if the other end has closed the connection.
            TimeoutError: if the time limit is exceeded.
        """
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        with _convert_errors():
            self._socket.settimeout(timeout_s)
            self._socket.sendall(len(data).to_bytes(_HEAD_BYTES, "little") + data)

    def receive(self, timeout_s: float | None = None) -> Any:
        """Wait for the next value and return it.

        Raises:
            WireClosed: if the other end has closed the connection.
            TimeoutError: if the time limit is exceeded.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        size = int.from_bytes(self._read(_HEAD_BYTES, deadline), "little")
        return pickle.loads(self._read(size, deadline))  # noqa: S301 (from a process of ours)

    def send_descriptor(self, descriptor: int) -> None:
        """Send a copy of an open file descriptor. Raises the same errors as :meth:`send`."""
        with _convert_errors():
            self._socket.settimeout(None)
            socket.send_fds(self._socket, [b"\0"], [descriptor])

    def receive_descriptor(self, timeout_s: float | None = None) -> int:
        """Receive a file descriptor. Raises the same errors as :meth:`receive`."""
        with _convert_errors():
            self._socket.settimeout(timeout_s)
            _, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        if not descriptors:
            raise WireClosed("did not receive a descriptor")
        return descriptors[0]

    def shut_down(self) -> None:
        """Shut down and close the connection, even if another thread is waiting on it."""
        with suppress(OSError):  # the other end is already closed
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def close(self) -> None:
        """Close this end of the connection. Copies in other processes stay open."""
        self._socket.close()

    def _read(self, n: int, deadline: float | None) -> bytes:
        data = bytearray(n)
        rest = memoryview(data)
        while rest:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            with _convert_errors():
                self._socket.settimeout(left)
                got = self._socket.recv_into(rest)
            if not got:
                raise WireClosed("the other end is closed")
            rest = rest[got:]
        return bytes(data)
