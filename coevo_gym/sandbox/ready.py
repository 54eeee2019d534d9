"""Whether something can be read, for any number of open files."""

from __future__ import annotations

import select
from typing import Protocol


class _Open(Protocol):
    def fileno(self) -> int: ...


def readable(end: int | _Open, timeout_s: float = 0.0) -> bool:
    """Wait until a descriptor can be read, or its other end is gone.

    It is a poll: a `select` fails on descriptors of 1,024 and more.

    Args:
        end: the descriptor, or what has one.
        timeout_s: how long to wait.
    """
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
