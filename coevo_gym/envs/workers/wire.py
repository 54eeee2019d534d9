"""Python values over a socket, between processes of ours.

Values are pickled, so both ends trust each other. Code that a model wrote is at neither of them: it
runs in a sandbox, which has a protocol of its own.
"""

from __future__ import annotations

import pickle
import socket
import time
from contextlib import suppress
from typing import Any

_HEAD_BYTES = 8


class WireClosed(Exception):
    """The other end is gone."""


class Wire:
    """One end of a stream socket that carries values, and now and then a file descriptor.

    A call that raises leaves the wire unusable: half a value may be under way.

    Args:
        connection: the socket; it is closed with the wire.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def fileno(self) -> int:
        """The socket's descriptor, to wait on."""
        return self._socket.fileno()

    def send(self, value: Any, timeout_s: float | None = None) -> None:
        """Send a value.

        Args:
            value: what pickle takes. If pickle refuses it, nothing is sent, and the wire stays
                usable.
            timeout_s: how long the other end may take to make room; None to wait for ever.

        Raises:
            WireClosed: if the other end is gone.
            TimeoutError: if it takes longer.
        """
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(len(data).to_bytes(_HEAD_BYTES, "little") + data)
        except TimeoutError:
            raise
        except OSError as error:
            raise WireClosed(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> Any:
        """Wait for the next value.

        Raises:
            WireClosed: if the other end is gone.
            TimeoutError: if it takes longer.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        size = int.from_bytes(self._read(_HEAD_BYTES, deadline), "little")
        return pickle.loads(self._read(size, deadline))  # noqa: S301 (from a process of ours)

    def send_descriptor(self, descriptor: int) -> None:
        """Send a copy of an open file descriptor; errors are those of :meth:`send`."""
        try:
            self._socket.settimeout(None)
            socket.send_fds(self._socket, [b"\0"], [descriptor])
        except OSError as error:
            raise WireClosed(str(error)) from error

    def receive_descriptor(self, timeout_s: float | None = None) -> int:
        """Wait for a file descriptor; errors are those of :meth:`receive`."""
        try:
            self._socket.settimeout(timeout_s)
            _, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        except TimeoutError:
            raise
        except OSError as error:
            raise WireClosed(str(error)) from error
        if not descriptors:
            raise WireClosed("no descriptor has come")
        return descriptors[0]

    def hang_up(self) -> None:
        """End the connection, also for a thread that waits on it, and close this end."""
        with suppress(OSError):  # the other end is gone
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def close(self) -> None:
        """Close this end; another process that holds a copy of it goes on."""
        self._socket.close()

    def _read(self, n: int, deadline: float | None) -> bytes:
        data = bytearray(n)
        rest = memoryview(data)
        while rest:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            try:
                self._socket.settimeout(left)
                got = self._socket.recv_into(rest)
            except TimeoutError:
                raise
            except OSError as error:
                raise WireClosed(str(error)) from error
            if not got:
                raise WireClosed("the other end is closed")
            rest = rest[got:]
        return bytes(data)
