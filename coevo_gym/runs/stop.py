"""Ctrl-C handling: the first signal stops a run after its current step, the second right away."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn, Self

INTERRUPTED = 130
_SHOW_CURSOR = b"\x1b[?25h"


class Stopped(Exception):
    """Raised when the user stops a command early. Finished work is saved."""


class StopRequest:
    """A context manager that handles SIGINT and SIGTERM. Calling it returns True after a signal.

    After the first signal, the command continues until it can save its work. The second
    signal stops it at once; everything reported as saved is already on disk.

    Args:
        at_once: called at the second signal; None exits the process.
        says: the beginning of the line that is printed after the first signal.

    Attributes:
        waits_for: returns a description of the operation that has to finish first; "" if unknown.
    """

    def __init__(
        self,
        at_once: Callable[[], NoReturn] | None = None,
        *,
        says: str = "Stopping after this step and saving",
    ) -> None:
        self.requested = False
        self.waits_for: Callable[[], str] = lambda: ""
        self._at_once, self._says = at_once, says
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        """Return True if a stop was requested."""
        return self.requested

    def __enter__(self) -> Self:
        # Python delivers signals to the main thread only.
        listens = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGINT, signal.SIGTERM) if listens else ():
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if self._at_once is not None:
                self._at_once()
            if os.isatty(1):
                os.write(1, _SHOW_CURSOR)
            os._exit(INTERRUPTED)
        self.requested = True
        # Not through sys.stderr: a handler may run in the middle of a write to it.
        work = f": {reason}" if (reason := self.waits_for()) else ""
        again = "Stop again to end it now" if self._at_once else "Press Ctrl-C again to exit now"
        text = f"\n{self._says}{work}. {again}.\n"
        os.write(2, text.encode(errors="replace"))
