"""What envs, vector envs and wrappers refuse before anything runs: arguments of another type."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeGuard

import numpy as np

from coevo_gym.core.errors import ConfigError


def is_positive_int(value: object) -> TypeGuard[int]:
    """Whether a value is an int (Python's or NumPy's) of at least 1; True is no number."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        return False
    return bool(value >= 1)


def is_positive_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number above 0; True is no number."""
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        return False
    return math.isfinite(value) and bool(value > 0)


def check_action(action: object, whose: str = "") -> None:
    """Refuse an action that is no text.

    Args:
        action: what is to be sent to an env.
        whose: words for the message, such as ``"of env 3"``.

    Raises:
        TypeError: if it is not a string.
    """
    if not isinstance(action, str):
        which = f"An action {whose}".rstrip()
        raise TypeError(f"{which} is a string, actual: {action!r} ({type(action).__name__})")


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False: a text such as "no" would count as yes.

    Raises:
        ConfigError: naming the argument and its value.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, actual: {value!r}")


def names_of(tasks: Any) -> tuple[str, ...]:
    """The names or ids in an env's argument ``tasks``.

    Raises:
        ConfigError: if it is no list of texts.
    """
    names = tuple(tasks) if isinstance(tasks, Iterable) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            "tasks must be a list of names or ids of tasks, or the path of a JSONL file of tasks "
            f"as a text, actual: {tasks!r:.80} ({type(tasks).__name__}). A Task of your own is "
            'passed to reset(options={"task": …}).'
        )
    return names
