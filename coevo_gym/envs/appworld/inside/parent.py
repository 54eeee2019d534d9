"""Code that makes the kernel kill a process when its parent exits."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Make the kernel kill this process when its parent exits.

    Args:
        parent: pid of the parent; if the current parent differs, it has exited already.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
