"""Type checks for the arguments of envs, vector envs and wrappers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeGuard

import numpy as np

from coevo_gym.core.errors import ConfigError


def is_positive_int(value: object) -> TypeGuard[int]:
    """Return True if a value is a Python or NumPy integer of at least 1, and not a bool."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        return False
    return bool(value >= 1)


def is_positive_number(value: object) -> TypeGuard[float]:
    """Return True if a value is a finite number above 0, and not a bool."""
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        return False
    return math.isfinite(value) and bool(value > 0)


def check_action(action: object, whose: str = "") -> None:
    """Raise a ``TypeError`` if an action is not a string.

    ``whose`` identifies the action in the message, such as ``"of env 3"``.
    """
    if not isinstance(action, str):
        which = f"An action {whose}".rstrip()
        raise TypeError(f"{which} must be a string, got {action!r} ({type(action).__name__})")


def check_flag(name: str, value: object) -> None:
    """Raise an error if a value is not a bool. A string such as "no" would count as True.

    Raises:
        ConfigError: if the value is not a bool.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r}")


def require_names(tasks: Any) -> tuple[str, ...]:
    """Return the names or ids passed as an env's ``tasks`` argument.

    Raises:
        ConfigError: if the argument is not a list of strings.
    """
    names = tuple(tasks) if isinstance(tasks, Iterable) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            "tasks must be a list of task names or ids, or the path to a JSONL file of tasks, "
            f"got {repr(tasks)[:80]} ({type(tasks).__name__}). To run your own Task, call "
            'reset(options={"task": task}).'
        )
    return names
