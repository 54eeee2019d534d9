"""Calls of a user's functions, with a time limit: verdicts on answers, and replies to them."""

from __future__ import annotations

import asyncio
import inspect
import math
import runpy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from pathlib import Path
from threading import Thread
from typing import Any, cast

from coevo_gym.core.errors import ConfigError, EnvBackendError
from coevo_gym.core.registry import suggest
from coevo_gym.core.task import thaw

Row = Mapping[str, Any]
Verify = Callable[[dict[str, Any], str], bool | float | Awaitable[bool | float]]
"""A function ``verify(row, answer)``, which may be asynchronous. It returns True or False, or a
score in [0, 1]; only a score of 1 is a success."""
Respond = Callable[[dict[str, Any], list[dict[str, str]]], str | Awaitable[str | None] | None]
"""A function ``respond(row, messages)``, which may be asynchronous. It returns the user's next
message, or None at the end of the conversation."""

_SHOWN = 200


def load_function(place: str) -> Verify:
    """Run a Python file and return a function in it.

    Args:
        place: ``"FILE.py:FUNCTION"``.

    Raises:
        ConfigError: if the file cannot be run, or has no such function.
    """
    file, colon, name = place.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise ConfigError(f"--verify must have the form FILE.py:FUNCTION, got {place!r}.")
    try:
        found = runpy.run_path(file, run_name=Path(file).stem)
    except Exception as error:
        raise ConfigError(f"Cannot run {file}: {type(error).__name__}: {error}.") from error
    if not callable(function := found.get(name)):
        functions = [key for key, value in found.items() if inspect.isfunction(value)]
        raise ConfigError(f"{file} has no function {name!r}. {suggest(name, functions)}")
    return cast(Verify, function)


def source_of(*functions: object) -> str:
    """Return the source of functions and classes, as far as it is known."""
    sources = []
    for function in functions:
        try:
            sources.append(inspect.getsource(cast(Any, function)))
        except (OSError, TypeError):
            continue
    return "\n".join(sources)


def call(name: str, function: Callable[[], object], timeout_s: float, about: str) -> object:
    """Call a function of the user's, and await its result if it is asynchronous.

    Args:
        name: name of the function, for messages.
        function: the function with its arguments.
        timeout_s: maximum seconds.
        about: words about the arguments, for messages.

    Raises:
        EnvBackendError: if the function raises an error or does not return in time. The episode is
            then lost, and never counts as a failure of the agent.
    """
    result: Future[object] = Future()

    def run() -> None:
        try:
            value = function()
            result.set_result(asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value)
        except Exception as error:
            result.set_exception(error)
        except BaseException as error:  # such as SystemExit, which would end this process
            result.set_exception(RuntimeError(repr(error)))

    Thread(target=run, name=f"coevo-{name}", daemon=True).start()
    try:
        return result.result(timeout_s)
    except Exception as error:
        if isinstance(error, NotInTime) and not result.done():
            raise EnvBackendError(
                f"{name} did not return within {timeout_s:g} s {about}. Raise timeout_s of "
                "from_rows, or make the function faster."
            ) from None
        raise EnvBackendError(
            f"{name} raised {type(error).__name__}: {error} {about}. It must accept any text: for "
            "an answer that it cannot read, a verdict is False."
        ) from error


async def _awaited(value: Awaitable[object]) -> object:
    return await value


def about_answer(row: Row, answer: str) -> str:
    """Describe an answer and its row, for messages."""
    return f"for the answer {answer[:_SHOWN]!r} to the row {row.get('id', thaw(row))!r}"


def score_of(verify: Verify, row: Row, answer: str, timeout_s: float) -> float:
    """Return the score of an answer in [0, 1].

    Raises:
        EnvBackendError: as for :func:`call`, or if the function returns anything else.
    """
    about = about_answer(row, answer)
    value = call("verify", lambda: verify(thaw(row), answer), timeout_s, about)
    return checked(value, "verify must return a bool or a score in [0, 1]", about)


def checked(score: object, rule: str, about: str) -> float:
    """Return a score as a float.

    Raises:
        EnvBackendError: if it is not a number in [0, 1].
    """
    if isinstance(score, (bool, int, float)) and math.isfinite(score) and 0 <= score <= 1:
        return float(score)
    raise EnvBackendError(f"{rule}, got {score!r} {about}.")


def reply_of(
    respond: Respond, row: Row, messages: Sequence[Mapping[str, str]], timeout_s: float
) -> str | None:
    """Return the user's next message, or None at the end of the conversation.

    Raises:
        EnvBackendError: as for :func:`call`, or if the function returns anything else.
    """
    about = about_answer(row, messages[-1]["content"])
    said = [dict(message) for message in messages]
    value = call("respond", lambda: respond(thaw(row), said), timeout_s, about)
    if value is None or isinstance(value, str):
        return value
    raise EnvBackendError(f"respond must return a text or None, got {value!r} {about}.")
