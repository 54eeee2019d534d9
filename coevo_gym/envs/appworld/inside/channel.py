"""JSON objects over a socket, one a line.

Reading never waits for who is at the other end: what a poll announces is read without blocking, and
if there is nothing to read then, such as with a byte out of band, the other end breaks the rules.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any


class ChannelError(Exception):
    """The other end is gone, or sent what is not a JSON object on a line of allowed length."""


class Channel:
    """One end of a stream socket that carries JSON objects, and now and then a file descriptor.

    Args:
        connection: the socket; it is closed with the channel.
        max_bytes: longest line that is accepted.
        patience_s: how long the other end may take to make room for what is sent.
        takes_descriptors: whether descriptors that come are kept for :meth:`take_descriptor`; else
            the kernel closes them, so that who sends some takes nothing from this process.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        max_bytes: int,
        patience_s: float = 10.0,
        takes_descriptors: bool = False,
    ) -> None:
        self._socket = connection
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._takes_descriptors = takes_descriptors
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()  # of a line whose end has not come
        self._descriptors: list[int] = []

    def fileno(self) -> int:
        """The socket's descriptor, to wait on."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send an object, with copies of open file descriptors.

        Raises:
            ChannelError: if the other end is gone, or does not read for ``patience_s``.
        """
        line = json.dumps(message).encode() + b"\n"
        try:
            self._socket.settimeout(self._patience_s)
            if descriptors:
                line = line[socket.send_fds(self._socket, [line], descriptors) :]
            self._socket.sendall(line)
        except OSError as error:
            raise ChannelError(f"nothing can be sent: {error}") from error

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the next object.

        Raises:
            ChannelError: if the other end is gone, or sends anything else.
            TimeoutError: if it takes longer.
        """
        deadline = time.monotonic() + timeout_s
        while not self.pending:
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError(f"no line in {timeout_s:g} s")
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if poll.poll(left * 1000):
                self.fill()
        return self.take()

    @property
    def pending(self) -> bool:
        """Whether a line can be taken at once."""
        return bool(self._lines)

    def fill(self) -> None:
        """Read once from the socket, as much as there is, when a poll has announced it.

        Raises:
            ChannelError: if the other end is gone, the line is too long, or what is announced
                cannot be read.
        """
        try:
            self._socket.setblocking(False)
            if self._takes_descriptors:
                data, descriptors, _, _ = socket.recv_fds(self._socket, 1 << 18, 1)
                self._descriptors += descriptors
            else:
                data = self._socket.recv(1 << 18)
        except OSError as error:
            raise ChannelError(f"nothing can be received: {error}") from error
        if not data:
            raise ChannelError("the other end is closed")
        *ended, rest = data.split(b"\n")
        for line in ended:
            self._lines.append(bytes(self._rest) + line)
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > self._max_bytes and not self._lines:
            raise ChannelError(f"a line has more than {self._max_bytes:,} bytes")

    def take(self) -> dict[str, Any]:
        """The next object of those that are pending.

        Raises:
            ChannelError: if the line is too long or not a JSON object.
        """
        line = self._lines.popleft()
        if len(line) > self._max_bytes:
            raise ChannelError(f"a line has more than {self._max_bytes:,} bytes")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError, MemoryError) as error:
            raise ChannelError(f"a line is not JSON: {error}") from error
        if not isinstance(message, dict):
            raise ChannelError("a line is not a JSON object")
        return message

    def take_descriptor(self) -> int:
        """The file descriptor that came first of those that came with the lines so far."""
        return self._descriptors.pop(0)

    def hang_up(self) -> None:
        """End the connection for every process that holds a copy of this end, and close it."""
        with suppress(OSError):  # the other end is gone
            self._socket.shutdown(socket.SHUT_RDWR)
        self.close()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
        for descriptor in self._descriptors:
            socket.close(descriptor)
        self._descriptors.clear()
