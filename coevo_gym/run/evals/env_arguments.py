"""Env arguments from the command line, checked before the env is created."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from coevo_gym.core.errors import ConfigError

_SET_ELSEWHERE = {
    "split": "Pass --split instead.",
    "render_mode": "An evaluation draws nothing.",
}


def read_arguments(env_class: type, items: Sequence[str]) -> dict[str, Any]:
    """Parse arguments for an env.

    Args:
        env_class: class of the env.
        items: arguments as ``"name=value"``; a value is parsed as JSON if possible, else as text.

    Raises:
        ConfigError: if the class has no argument of this name, or does not accept the value.

    Example:
        >>> from coevo_gym.envs.base import TaskEnv
        >>> read_arguments(TaskEnv, ["max_steps=3", "subset=human"])
        {'max_steps': 3, 'subset': 'human'}
    """
    known = dict(_parameters(env_class))
    arguments = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals:
            raise ConfigError(f"--env takes name=value, actual: {item!r}.")
        if name in _SET_ELSEWHERE:
            raise ConfigError(f"--env does not take {name!r}. {_SET_ELSEWHERE[name]}")
        if name not in known:
            close = get_close_matches(name, list(known), n=1)
            meant = f"Did you mean {close[0]!r}? " if close else ""
            raise ConfigError(
                f"{env_class.__name__} has no argument {name!r}. {meant}"
                f"It takes: {', '.join(known)}."
            )
        arguments[name] = _value(name, text, known[name])
    return arguments


def _parameters(env_class: type) -> Iterator[tuple[str, Any]]:
    """Return names and types of the keyword arguments of a class and its bases."""
    for base in env_class.__mro__:
        init = vars(base).get("__init__")
        if not inspect.isfunction(init):
            continue
        types = get_type_hints(init)
        parameters = inspect.signature(init).parameters.values()
        for parameter in parameters:
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in _SET_ELSEWHERE:
                yield parameter.name, types.get(parameter.name, Any)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return


def _value(name: str, text: str, wanted: Any) -> Any:
    """Return the value that a text represents, if the argument accepts it."""
    adapter = TypeAdapter(wanted)
    try:
        return adapter.validate_python(json.loads(text), strict=True)
    except (ValueError, RecursionError):  # not JSON, or another type
        pass
    try:
        return adapter.validate_python(text, strict=True)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ConfigError(f"--env {name}={text}: {reason}.") from None
