"""Calls of a user's function that judges answers."""

from __future__ import annotations

import asyncio
import inspect
import math
import runpy
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from pathlib import Path
from threading import Thread
from typing import Any, cast

from coevo_gym.core.errors import ConfigError, EnvBackendError
from coevo_gym.core.registry import suggest
from coevo_gym.core.task import thaw

Verify = Callable[[dict[str, Any], str], bool | float | Awaitable[bool | float]]
"""A function ``verify(row, answer)``, which may be asynchronous. It returns True or False, or a
score in [0, 1]; only a score of 1 is a success."""

_SHOWN = 200


def load_verify(place: str) -> Verify:
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


def source_of(verify: Verify) -> str:
    """Return the source of a function, or "" if it is not known."""
    try:
        return inspect.getsource(verify)
    except (OSError, TypeError):
        return ""


def score_of(verify: Verify, row: Mapping[str, Any], answer: str, timeout_s: float) -> float:
    """Return the score of an answer in [0, 1].

    Raises:
        EnvBackendError: if the function raises an error, returns anything else, or does not return
            in time. The episode is then lost, and never counts as a failure of the agent.
    """
    result: Future[object] = Future()

    def run() -> None:
        try:
            value = verify(thaw(row), answer)
            result.set_result(asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value)
        except Exception as error:
            result.set_exception(error)
        except BaseException as error:  # such as SystemExit, which would end this process
            result.set_exception(RuntimeError(repr(error)))

    Thread(target=run, name="coevo-verify", daemon=True).start()
    about = f"for the answer {answer[:_SHOWN]!r} to the row {row.get('id', row)!r}"
    try:
        value = result.result(timeout_s)
    except NotInTime:
        if not result.done():
            raise EnvBackendError(
                f"verify did not return within {timeout_s:g} s {about}. Raise timeout_s of "
                "from_rows, or make the function faster."
            ) from None
        value = result.exception()
    except Exception as error:
        raise EnvBackendError(
            f"verify raised {type(error).__name__}: {error} {about}. It must accept any text: "
            "return False for an answer that it cannot read."
        ) from error
    if isinstance(value, (bool, int, float)) and math.isfinite(value) and 0 <= value <= 1:
        return float(value)
    raise EnvBackendError(f"verify must return a bool or a score in [0, 1], got {value!r} {about}.")


async def _awaited(value: Awaitable[object]) -> object:
    return await value
