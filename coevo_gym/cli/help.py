"""Help texts, identical in ``--help`` and in the documentation."""

from __future__ import annotations

import inspect
import re
from enum import EnumType
from typing import Any, get_args, get_type_hints


def for_help(command: Any) -> Any:
    """Prepare a command and its subcommands for ``--help``.

    Line breaks within paragraphs are removed, so that texts fit any terminal. Instead of Python
    types, the help shows the name or the choices of each value; flags show nothing.
    """
    command.help = re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.cleandoc(command.help or ""))
    parameters = command.get_params
    command.get_params = lambda ctx: [_spelled(command, one) for one in parameters(ctx)]
    for inner in getattr(command, "commands", {}).values():
        for_help(inner)
    return command


def _spelled(command: Any, parameter: Any) -> Any:
    if parameter.param_type_name == "argument":
        parameter.metavar = metavar_of(parameter)
        parameter.get_usage_pieces = lambda ctx: [parameter.metavar]
        parameter.display_type_rich = lambda ctx: None
    elif parameter.metavar is None:
        choices = "" if parameter.is_flag else "|".join(choices_of(command, parameter))
        parameter.metavar = "" if parameter.is_flag else choices or metavar_of(parameter)
    return parameter


def metavar_of(parameter: Any) -> str:
    """Return the word for a parameter's value; an optional argument is in brackets."""
    word = str(parameter.metavar or parameter.name.upper())
    optional = parameter.param_type_name == "argument" and not parameter.required
    return f"[{word}]" if optional and not word.startswith("[") else word


def choices_of(command: Any, parameter: Any) -> list[str]:
    """Return the values of a parameter that is one of a closed set, else none."""
    hints = get_type_hints(command.callback) if command.callback else {}
    hint = hints.get(parameter.name)
    enums: list[Any] = [part for part in (hint, *get_args(hint)) if isinstance(part, EnumType)]
    return [str(word) for enum in enums for word in enum]
