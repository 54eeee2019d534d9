"""Functions that turn tool schemas into methods with typed parameters and docstrings.

TRL describes the public methods of an environment to the model, using their annotations and
docstrings.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from types import GenericAlias
from typing import Any, Literal

from coevo_gym.core.errors import ConfigError

_PLAIN: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "object": dict,
    "null": type(None),
}
ANSWER = {
    "name": "answer",
    "description": "Give your answer, in words. It ends your turn; if there is a reply, it is the "
    "result.",
    "parameters": {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "The answer."}},
        "required": ["text"],
    },
}
"""Schema of the tool with which a model answers, because an environment does not see other text."""


def make_tool_methods(
    tools: Sequence[Mapping[str, Any]],
    call_tool: Callable[[Any, str, Mapping[str, Any]], str],
    reserved: Sequence[str],
) -> dict[str, Callable[..., str]]:
    """Create a method for each tool.

    Args:
        tools: function schemas: name, description and parameters.
        call_tool: function that a method calls with ``self``, the method's name and arguments.
        reserved: names that methods must not have.

    Raises:
        ConfigError: if a tool has one of these names, or the name of another tool.
    """
    methods: dict[str, Callable[..., str]] = {}
    for tool in tools:
        name = tool["name"]
        if name in methods or name in reserved:
            raise ConfigError(f"A tool must not be called {name!r} here. Rename the function.")
        methods[name] = _make_tool_method(tool, call_tool)
    return methods


def _make_tool_method(
    tool: Mapping[str, Any], call_tool: Callable[[Any, str, Mapping[str, Any]], str]
) -> Callable[..., str]:
    name, schema = tool["name"], tool["parameters"]

    def method(self: Any, **arguments: Any) -> str:
        return call_tool(self, name, arguments)

    required, definitions = schema.get("required", ()), schema.get("$defs", {})
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    lines = [_to_one_line(tool.get("description", "")) or name]
    for key, value in schema.get("properties", {}).items():
        default = inspect.Parameter.empty if key in required else value.get("default")
        parameters.append(
            inspect.Parameter(
                key,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=annotation_of(value, definitions),
            )
        )
        lines += ["Args:"] if len(lines) == 1 else []
        lines.append(f"    {key}: {_to_one_line(value.get('description', '')) or key}")
    lines += ["Returns:", "    The result."]
    method.__name__ = method.__qualname__ = name
    method.__doc__ = "\n".join([lines[0], "", *lines[1:]])
    signature = inspect.Signature(parameters, return_annotation=str)
    method.__signature__ = signature  # type: ignore[attr-defined]
    hints = {one.name: one.annotation for one in parameters[1:]}
    method.__annotations__ = {**hints, "return": str}
    return method


def annotation_of(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
    """Return the type that a JSON schema describes, or ``Any`` if no simple type matches.

    Example:
        >>> annotation_of({"type": "array", "items": {"type": "integer"}}, {})
        list[int]
    """
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        inner = {key: value for key, value in definitions.items() if key != name}
        return annotation_of(definitions.get(name, {}), inner)
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if "anyOf" in schema:
        return reduce(or_, (annotation_of(option, definitions) for option in schema["anyOf"]))
    kind = schema.get("type")
    if kind == "array":
        items = annotation_of(schema.get("items", {}), definitions)
        return list if items is Any else GenericAlias(list, (items,))
    return _PLAIN.get(kind, Any) if isinstance(kind, str) else Any


def _to_one_line(text: str) -> str:
    """Convert text to one line that contains no heading such as ``Args:``."""
    line = " ".join(text.split())
    for word in ("Args:", "Returns:", "Raises:"):
        line = line.replace(word, word[:-1])
    return line


def parse_function_schemas(tools: str) -> list[dict[str, Any]]:
    """Parse the JSON text of a chat request's ``tools``, and return the functions' schemas."""
    return [tool["function"] for tool in json.loads(tools)]
