"""A readiness check for any number of open files."""

from __future__ import annotations

import select
from typing import Protocol


class _Open(Protocol):
    def fileno(self) -> int: ...


def readable(end: int | _Open, timeout_s: float = 0.0) -> bool:
    """Wait until a descriptor can be read, or its other end is closed.

    It uses ``poll``, because ``select`` fails on descriptors of 1,024 and more.

    Args:
        end: the descriptor, or an object with a ``fileno()``.
        timeout_s: maximum wait in seconds.
    """
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
