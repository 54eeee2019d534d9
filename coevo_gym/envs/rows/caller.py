"""A thread that calls a user's functions, with a time limit, to judge and reply to answers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from coevo_gym.core.errors import CoevoError, EnvBackendError
from coevo_gym.core.task import thaw

Row = Mapping[str, Any]
Verify = Callable[[dict[str, Any], str], bool | float | Awaitable[bool | float]]
"""A function ``verify(row, answer)``, which may be asynchronous. It returns True or False, or a
score in [0, 1]; only a score of 1 is a success."""
Respond = Callable[[dict[str, Any], list[dict[str, str]]], str | Awaitable[str | None] | None]
"""A function ``respond(row, messages)``, which may be asynchronous. It returns the user's next
message, or None at the end of the conversation."""

NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
"""Types of scores and rewards."""
_SHOWN = 200
_HINTS = {
    "verify": " It must accept any text: for an answer that it cannot read, a verdict is False."
}
_Call = tuple[Callable[[], object], "Future[object]"]


class Caller:
    """A thread that calls a user's functions one at a time, each with a time limit.

    All calls of an episode run in one thread, because some objects belong to the thread that
    created them. After a call that did not return in time, the next call gets a new thread.

    Args:
        timeout_s: maximum seconds for each call.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._calls: SimpleQueue[_Call | None] | None = None

    def call(self, name: str, function: Callable[[], object], about: str) -> object:
        """Call a function, and await its result if it is asynchronous.

        Args:
            name: name of the function, for messages.
            function: the function with its arguments.
            about: description of the arguments, for messages.

        Raises:
            EnvBackendError: if the function raises an error or does not return in time. The
                episode is then lost, and never counts as a failure of the agent.
        """
        if self._calls is None:
            self._calls = SimpleQueue()
            Thread(target=_run_calls, args=(self._calls,), name="coevo-rows", daemon=True).start()
        result: Future[object] = Future()
        self._calls.put((function, result))
        try:
            return result.result(self._timeout_s)
        except Exception as error:
            if isinstance(error, NotInTime) and not result.done():
                self.close()
                raise EnvBackendError(
                    f"{name} did not return within {self._timeout_s:g} s {about}. Raise timeout_s "
                    "of from_rows, or make the function faster."
                ) from None
            hint = _HINTS.get(name, "") if not isinstance(error, CoevoError) else ""
            raise EnvBackendError(
                f"{name} raised {type(error).__name__}: {error} {about}.{hint}"
            ) from error

    def close(self) -> None:
        """End the thread after its current call. Repeated calls have no effect."""
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None


def _run_calls(calls: SimpleQueue[_Call | None]) -> None:
    while (work := calls.get()) is not None:
        function, result = work
        try:
            value = function()
            result.set_result(asyncio.run(_await(value)) if inspect.isawaitable(value) else value)
        except Exception as error:
            result.set_exception(error)
        except BaseException as error:  # such as SystemExit, which would end this process
            result.set_exception(RuntimeError(repr(error)))


async def _await(value: Awaitable[object]) -> object:
    return await value


def describe_answer(row: Row, answer: str) -> str:
    """Describe an answer and its row, for messages."""
    return f"for the answer {answer[:_SHOWN]!r} to the row {row.get('id', thaw(row))!r}"


def require_score(score: object, rule: str, about: str) -> float:
    """Return a score as a float after checking that it is in [0, 1].

    Raises:
        EnvBackendError: if it is not a number in [0, 1].
    """
    if isinstance(score, NUMBERS) and 0 <= score <= 1:
        return float(score)
    raise EnvBackendError(f"{rule}, got {score!r} {about}.")
