"""A user's functions and classes as tools that an agent calls by name."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from coevo_gym.core.errors import ConfigError, EnvBackendError
from coevo_gym.core.task import thaw
from coevo_gym.core.tool_calls import Call, Malformed
from coevo_gym.envs.rows.caller import Caller, Row
from coevo_gym.envs.rows.source import pack_function, unpack_function

Tool = Callable[..., Any] | type
"""A function with typed parameters, or a class whose public methods are such functions."""

RESULT_CAP = 32_000
"""Maximum number of characters shown per result."""
_ROW = "row"
_CLOSE = "close"
_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Example|Examples):\s*$")
_ARGUMENT = re.compile(r"^\s*\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


class TypedTool(NamedTuple):
    """A function that an agent can call.

    Attributes:
        function: the function.
        owner: class of a method; None for a function.
        takes_row: True if its first parameter is the row, which the agent does not see.
        arguments: pydantic model of its other parameters; each field's alias is the name.
        schema: its OpenAI tool schema.
    """

    function: Callable[..., Any]
    owner: type | None
    takes_row: bool
    arguments: type[BaseModel]
    schema: Mapping[str, Any]


class ToolSet:
    """The tools that a benchmark offers to its agents.

    Args:
        tools: functions and classes.

    Attributes:
        schemas: the tools, as the JSON text of a chat request's ``tools``.

    Raises:
        ConfigError: if a tool has a parameter without a type, two tools have the same name, or a
            tool is neither a function nor a class.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._functions = tuple(tools)
        self._tools: dict[str, TypedTool] = {}
        for owner, function in _list_functions(tools):
            tool = _create_typed_tool(function, owner)
            if (name := tool.schema["name"]) in self._tools:
                raise ConfigError(f"Two tools are called {name!r}. Rename one of them.")
            self._tools[name] = tool
        if not self._tools:
            raise ConfigError(
                "tools must contain at least one function, or a class with a public method, got "
                f"{tools!r}."
            )
        definitions = [
            {"type": "function", "function": dict(tool.schema)} for tool in self._tools.values()
        ]
        self.schemas = json.dumps(definitions, ensure_ascii=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_tool_set, ([pack_function("tools", tool) for tool in self._functions],)

    def parse_arguments(self, call: Call) -> dict[str, Any] | Malformed:
        """Convert a call's arguments to the function's types, or return why they do not fit.

        Types are strict: the string ``"3"`` is not a number.
        """
        tool = self._tools.get(call.name)
        if tool is None:
            names = ", ".join(self._tools)
            reason = f"there is no tool {call.name[:80]!r}. Call one of: {names}."
            return Malformed("tool", reason)
        try:
            arguments = tool.arguments.model_validate_json(json.dumps(call.arguments), strict=True)
        except ValidationError as error:
            return Malformed("arguments", _describe_error(call.name, error))
        return {
            str(field.alias): getattr(arguments, name)
            for name, field in tool.arguments.model_fields.items()
        }

    def open_tools(self, row: Row, caller: Caller) -> OpenTools:
        """Prepare the tools for an episode, with a new instance of each tool class.

        Raises:
            EnvBackendError: if an instance cannot be created.
        """
        return OpenTools(self, self._tools, row, caller)


def _unpickle_tool_set(tools: Sequence[object]) -> ToolSet:
    return ToolSet([unpack_function(tool) for tool in tools])


class OpenTools:
    """The tools in one episode, with an instance of each tool class."""

    def __init__(
        self, tools: ToolSet, typed: Mapping[str, TypedTool], row: Row, caller: Caller
    ) -> None:
        self._tools, self._typed, self._row, self._caller = tools, typed, row, caller
        owners = dict.fromkeys(tool.owner for tool in typed.values() if tool.owner is not None)
        about = f"for the row {row.get('id', thaw(row))!r}"
        self._objects: dict[type, Any] = {}
        try:
            for owner in owners:
                self._objects[owner] = caller.call(
                    owner.__name__, partial(_create_object, owner, row), about
                )
        except EnvBackendError:
            self.close()
            raise

    def run_call(self, call: Call) -> tuple[str, str]:
        """Run a tool call. Return its result, or the error, and the kind of error or "".

        Kinds are ``unknown_tool``, ``arguments`` and ``call``: the tool raised an exception.

        Raises:
            EnvBackendError: if the tool raises this error, or does not return in time.
        """
        arguments = self._tools.parse_arguments(call)
        if isinstance(arguments, Malformed):
            kind = "unknown_tool" if arguments.kind == "tool" else arguments.kind
            return error_text(arguments.reason), kind
        tool = self._typed[call.name]
        before: list[object] = [] if tool.owner is None else [self._objects[tool.owner]]
        if tool.takes_row:
            before.append(thaw(self._row))
        about = f"for the row {self._row.get('id', thaw(self._row))!r}"
        value = self._caller.call(
            call.name, lambda: _call_tool(lambda: tool.function(*before, **arguments)), about
        )
        if isinstance(value, _Failure):
            return error_text(value.text), "call"
        return _result_text(value), ""

    def close(self) -> None:
        """Close the instances that have a method ``close``, even if one of these methods fails."""
        with ExitStack() as stack:
            for tool in self._objects.values():
                if hasattr(tool, _CLOSE):
                    about = "at the end of an episode"
                    stack.callback(self._caller.call, _CLOSE, tool.close, about)
            self._objects = {}


def error_text(reason: str) -> str:
    """Format an error for the agent."""
    return f"Error: {reason}"


class _Failure(NamedTuple):
    """A description of an exception that a tool raised."""

    text: str


def _call_tool(run: Callable[[], object]) -> object:
    """Call a tool. Exceptions become results, except for infrastructure failures."""
    try:
        value = run()
        return _await_tool(value) if inspect.isawaitable(value) else value
    except EnvBackendError:
        raise
    except Exception as error:
        return _Failure(f"{type(error).__name__}: {error}")


async def _await_tool(value: Awaitable[object]) -> object:
    try:
        return await value
    except EnvBackendError:
        raise
    except Exception as error:
        return _Failure(f"{type(error).__name__}: {error}")


def _create_object(owner: type, row: Row) -> object:
    """Create an instance of a tool class. If its constructor has a parameter ``row``, pass it."""
    return owner(thaw(row)) if _ROW in inspect.signature(owner).parameters else owner()


def _list_functions(tools: Sequence[Tool]) -> list[tuple[type | None, Callable[..., Any]]]:
    """Return all tools, each with its class or None."""
    functions: list[tuple[type | None, Callable[..., Any]]] = []
    for tool in tools:
        if isinstance(tool, type):
            names = dict.fromkeys(name for kind in reversed(tool.__mro__) for name in vars(kind))
            methods = (getattr(tool, name) for name in names if name[0] != "_" and name != _CLOSE)
            functions += [(tool, method) for method in methods if inspect.isfunction(method)]
        elif inspect.isroutine(tool) and tool.__name__.isidentifier():
            functions.append((None, tool))
        else:
            raise ConfigError(
                f"A tool must be a function with a name, or a class, got {tool!r}. For an object, "
                "pass its methods."
            )
    return functions


def _create_typed_tool(function: Callable[..., Any], owner: type | None) -> TypedTool:
    """Derive a tool's schema from its annotations and its Google-style docstring."""
    name = function.__name__
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = list(inspect.signature(function).parameters.values())
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"Cannot read the parameters of the tool {name}: {error}.") from error
    parameters = parameters[0 if owner is None else 1 :]
    takes_row = bool(parameters) and parameters[0].name == _ROW
    about, described = _split_docstring(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    for parameter in parameters[takes_row:]:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"The parameter {parameter} of the tool {name} cannot be passed by name."
            )
        if parameter.name not in hints:
            raise ConfigError(
                f"The parameter {parameter.name!r} of the tool {name} has no type. Annotate it, "
                f"for example {parameter.name}: str."
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        words = described.get(parameter.name)
        field = Field(default, alias=parameter.name, description=words)
        fields[f"p{len(fields)}"] = (hints[parameter.name], field)  # any name, such as "copy"
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    try:
        arguments = create_model(name, __config__=config, **fields)
        schema = _drop_titles(arguments.model_json_schema())
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"The parameters of the tool {name} have no JSON schema: {reason}. Use types such as "
            "str, int, float, bool, list, dict, Literal, or pydantic models."
        ) from error
    del schema["additionalProperties"]
    described_tool = {"name": name, "description": about, "parameters": schema}
    return TypedTool(function, owner, takes_row, arguments, described_tool)


def _split_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into the tool's description and the descriptions of its parameters."""
    description: list[str] = []
    arguments: dict[str, str] = {}
    section, latest, indent = "", "", 0
    for line in text.splitlines():
        if match := _SECTION.match(line):
            section = match[1]
        elif not section:
            description.append(line)
        elif section in ("Args", "Arguments", "Parameters") and line.strip():
            margin = len(line) - len(line.lstrip())
            match = _ARGUMENT.match(line)
            if match and (not latest or margin <= indent):
                latest, indent = match[1], margin
                arguments[latest] = match[2].strip()
            elif latest:
                arguments[latest] = f"{arguments[latest]} {line.strip()}".strip()
    return "\n".join(description).strip(), arguments


def _drop_titles(schema: Any) -> Any:
    """Return a schema without titles, because they only repeat names."""
    if isinstance(schema, list):
        return [_drop_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in ("default", "enum", "const", "examples") else _drop_titles(value)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }


def _describe_error(name: str, error: ValidationError) -> str:
    """Describe the first error in a call's arguments."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    match first["type"]:
        case "missing":
            return f"{name} needs the argument {place!r}."
        case "extra_forbidden":
            return f"{name} has no parameter {place!r}."
    return f"the argument {place!r} of {name} is invalid: {first['msg']}."


def _result_text(value: object) -> str:
    """Format a tool's result as text. A string is unchanged; other values become JSON."""
    text = value
    if not isinstance(text, str):
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
        except (TypeError, ValueError, RecursionError):
            text = str(value)
    if len(text) <= RESULT_CAP:
        return text
    return f"{text[:RESULT_CAP]}… ({RESULT_CAP:,} of {len(text):,} characters shown)"
