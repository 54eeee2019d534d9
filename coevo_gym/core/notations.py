"""Notations for tool calls that models are trained on, each with a reader and a writer.

Readers accept any text: a call that cannot be parsed becomes a
:class:`~coevo_gym.core.tool_calls.Malformed`. Reading takes time linear in the length of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from coevo_gym.core.thoughts import without_thoughts
from coevo_gym.core.tool_calls import (
    CLOSE,
    DECODER,
    MAX_DEPTH,
    MAX_DIGITS,
    OPEN,
    Call,
    Malformed,
    Unnumbered,
    call_from_json,
    parse_literal,
    parse_python,
    read_hermes,
    shorten,
    skip_blanks,
    write_hermes,
)


class Notation(NamedTuple):
    """A notation for tool calls.

    Attributes:
        read: returns the calls in an answer, in order; () if it contains none. Its second argument
            contains the JSON schema of each tool's parameters.
        write: writes calls as the model would.
    """

    read: Callable[[str, Mapping[str, Mapping[str, Any]]], tuple[Call | Malformed, ...]]
    write: Callable[[Sequence[Call]], str]


def read_calls(notation: str, answer: str, tools: str) -> tuple[Call | Malformed, ...]:
    """Read the tool calls in an answer whose thoughts have already been removed.

    Args:
        notation: a name in :data:`NOTATIONS`.
        answer: any text.
        tools: the tools, as the JSON text of a chat request's ``tools``.
    """
    return NOTATIONS[notation].read(answer, parameter_schemas(tools))


def read_action_calls(action: str, tools: str = "[]") -> tuple[Call | Malformed, ...]:
    """Read the calls in an env's action, written in Hermes notation or as a Python list.

    Args:
        action: the action; thoughts in it are ignored.
        tools: the tools, as the JSON text of a chat request's ``tools``.
    """
    text = without_thoughts(action)
    return read_hermes(text) or _read_pythonic(text, parameter_schemas(tools))


@lru_cache(maxsize=256)
def parameter_schemas(tools: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the JSON schema of each tool's parameters, keyed by tool name."""
    functions = (tool["function"] for tool in json.loads(tools))
    return {function["name"]: function.get("parameters", {}) for function in functions}


def _read_qwen3_coder(
    text: str, schemas: Mapping[str, Mapping[str, Any]]
) -> tuple[Call | Malformed, ...]:
    """Read calls in the XML-like notation of Qwen3-Coder.

    ``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`` is a call.
    Line breaks between a value and its tags are removed. A value is converted to the type in the
    tool's schema, or remains text if it does not fit the type.
    """
    items: list[Call | Malformed] = []
    start = text.find(OPEN)
    if start < 0 and "<function=" in text:
        return (Malformed("block", f"{OPEN} is missing before <function=…>"),)
    while start >= 0:
        item, stop = _read_xml_call(text, start + len(OPEN), schemas)
        items.append(item)
        start = text.find(OPEN, stop) if stop >= 0 else -1
    return tuple(items)


_FUNCTION = re.compile(r"\s*<function=([^>\n]*)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)>")
_VALUE_ENDS, _FUNCTION_ENDS = "</parameter>", "</function>"


def _read_xml_call(
    text: str, start: int, schemas: Mapping[str, Mapping[str, Any]]
) -> tuple[Call | Malformed, int]:
    """Read the call that begins at ``start``.

    Return it and the position after it; -1 at the end.
    """

    def reject(reason: str, place: int) -> tuple[Malformed, int]:
        stop = text.find(CLOSE, place)
        return Malformed("block", f"{reason} {shorten(text[start : start + 200].strip())}"), stop

    function = _FUNCTION.match(text, start)
    if function is None:
        return reject("<function=NAME> is missing in", start)
    name, place = function[1].strip(), function.end()
    schema, arguments = schemas.get(name, {}), {}
    while (parameter := _PARAMETER.match(text, place)) is not None:
        end = text.find(_VALUE_ENDS, parameter.end())
        if end < 0:
            return reject(f"{_VALUE_ENDS} is missing in", len(text))
        value = text[parameter.end() : end].removeprefix("\n").removesuffix("\n")
        key, place = parameter[1].strip(), end + len(_VALUE_ENDS)
        arguments[key] = _convert_value(value, schema.get("properties", {}).get(key, {}), schema)
    place = skip_blanks(text, place)
    if not text.startswith(_FUNCTION_ENDS, place):
        return reject(f"{_FUNCTION_ENDS} is missing in", place)
    place = skip_blanks(text, place + len(_FUNCTION_ENDS))
    if not text.startswith(CLOSE, place):
        return reject(f"{CLOSE} is missing in", place)
    if not name:
        return Malformed("call", "a call has no name"), place
    return Call(name, arguments), place


_INTEGER = re.compile(rf"[-+]?[0-9]{{1,{MAX_DIGITS}}}")
_TRUTH = {"true": True, "false": False}


def _convert_value(text: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """Convert a value's text to the type in its schema, or return the text if it does not fit."""
    bare = text.strip()
    for kind in _accepted_types(schema, root):
        if kind == "string":
            return text
        if kind == "null" and bare.lower() in ("null", "none"):
            return None
        if kind == "boolean" and bare.lower() in _TRUTH:
            return _TRUTH[bare.lower()]
        if kind == "integer" and _INTEGER.fullmatch(bare):
            return int(bare)
        if kind in ("number", "array", "object"):
            value = _parse_json_or_python(bare)
            if isinstance(value, _OF_JSON[kind]) and not isinstance(value, bool):
                return value
    known = schema.get("enum", ())
    return next((value for value in known if json.dumps(value) == bare), text)


_OF_JSON: Mapping[str, tuple[type, ...]] = {
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
}


def _accepted_types(
    schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0
) -> list[str]:
    """Return the types that a schema accepts, ``null`` first; [] if it specifies no type."""
    if "$ref" in schema and depth < MAX_DEPTH:
        name = str(schema["$ref"]).rpartition("/")[2]
        return _accepted_types(root.get("$defs", {}).get(name, {}), root, depth + 1)
    types = schema.get("type", [])
    types = list(types) if isinstance(types, list) else [types]
    for option in schema.get("anyOf", ()):
        types += _accepted_types(option, root, depth + 1) if depth < MAX_DEPTH else []
    return sorted(types, key=lambda kind: kind != "null")


def _parse_json_or_python(text: str) -> Any:
    """Decode JSON, or else a Python literal; return None if it is neither."""
    try:
        return DECODER.decode(Unnumbered(text))
    except ValueError:
        pass
    try:
        return _to_json_types(parse_literal(text))
    except ValueError:
        return None


def _write_qwen3_coder(calls: Sequence[Call]) -> str:
    blocks = []
    for call in calls:
        values = (
            f"<parameter={key}>\n"
            f"{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
            f"\n{_VALUE_ENDS}\n"
            for key, value in call.arguments.items()
        )
        inner = f"<function={call.name}>\n{''.join(values)}{_FUNCTION_ENDS}"
        blocks.append(f"{OPEN}\n{inner}\n{CLOSE}")
    return "\n".join(blocks)


_TAG = "<|python_tag|>"
_OBJECT = re.compile(r'^[ \t]*(?=\{\s*"(?:name|type|parameters)"\s*:)', re.MULTILINE)
_SEPARATOR = re.compile(r"[\s;]*")


def _read_llama3(answer: str) -> tuple[Call | Malformed, ...]:
    """Read ``{"name": …, "parameters": {…}}`` objects, separated by semicolons.

    They follow ``<|python_tag|>``, or begin a line with the key ``name``, ``type`` or
    ``parameters``. The text before and after them is ignored.
    """
    text = Unnumbered(answer)
    place = text.find(_TAG)
    if place < 0:
        match = _OBJECT.search(text)
        if match is None:
            return ()
        place = match.end()
    items: list[Call | Malformed] = []
    while True:
        tagged = text.startswith(_TAG, place)
        place = skip_blanks(text, place + len(_TAG)) if tagged else place
        try:
            value, place = DECODER.raw_decode(text, place)
        except ValueError as error:
            code = shorten(text[place:])
            return (*items, Malformed("block", f"{code} is not JSON: {shorten(str(error))}"))
        key = "arguments" if isinstance(value, dict) and "arguments" in value else "parameters"
        items.append(call_from_json(value, key))
        after = _SEPARATOR.match(text, place)
        assert after is not None  # it matches the empty text, too
        place = after.end()
        if not text.startswith(("{", _TAG), place):
            return tuple(items)


def _write_llama3(calls: Sequence[Call]) -> str:
    return "; ".join(
        json.dumps({"name": call.name, "parameters": call.arguments}, ensure_ascii=False)
        for call in calls
    )


_PYTHON_TAGS = ("<|python_start|>", "<|python_end|>", _TAG)
_LIST_OF_CALLS = re.compile(r"\[\s*[^\W\d][\w.]*\s*\(")
_JSON_NAMES = {"true": True, "false": False, "null": None}


def _read_pythonic(
    text: str, schemas: Mapping[str, Mapping[str, Any]]
) -> tuple[Call | Malformed, ...]:
    """Read ``[f(a=1), g(b="x")]``, if the whole text is a list that begins with a call.

    ``true``, ``false`` and ``null`` are values, too. Positional values belong to the parameters of
    the tool in their order.
    """
    for tag in _PYTHON_TAGS:
        text = text.replace(tag, "")
    code = text.strip()
    if not _LIST_OF_CALLS.match(code):
        return ()
    items = parse_python(code, _JSON_NAMES)
    return tuple(
        _name_arguments(item, schemas) if isinstance(item, Call) else item for item in items
    )


def _name_arguments(call: Call, schemas: Mapping[str, Mapping[str, Any]]) -> Call | Malformed:
    """Convert positional arguments to named arguments, and all values to JSON types."""
    names = list(schemas.get(call.name, {}).get("properties", {}))
    if len(call.positional) > len(names):
        if call.name not in schemas:
            return Malformed("tool", f"there is no tool {shorten(repr(call.name))}")
        n = len(call.positional)
        return Malformed("arguments", f"{call.name} takes {len(names)} arguments, got {n}")
    arguments = {**dict(zip(names, call.positional, strict=False)), **call.arguments}
    try:
        return Call(call.name, _to_json_types(arguments))
    except ValueError as error:
        return Malformed("arguments", f"an argument of {shorten(call.name)} is not JSON: {error}")


def _to_json_types(value: Any) -> Any:
    """Convert a Python value to JSON types: a tuple becomes a list.

    Raises:
        ValueError: if the value has no JSON form.
    """
    try:
        return json.loads(json.dumps(value))
    except (TypeError, RecursionError) as error:
        raise ValueError(shorten(str(error))) from error


def _write_pythonic(calls: Sequence[Call]) -> str:
    def write(call: Call) -> str:
        return f"{call.name}({', '.join(f'{k}={v!r}' for k, v in call.arguments.items())})"

    return f"[{', '.join(map(write, calls))}]"


NOTATIONS: Mapping[str, Notation] = {
    "hermes": Notation(lambda text, _: read_hermes(text), write_hermes),
    "qwen3_coder": Notation(_read_qwen3_coder, _write_qwen3_coder),
    "llama3": Notation(lambda text, _: _read_llama3(text), _write_llama3),
    "pythonic": Notation(_read_pythonic, _write_pythonic),
    "openai": Notation(lambda text, _: read_hermes(text), write_hermes),
}
"""Notations for calls: of Hermes and Qwen2.5 and 3 (JSON between tags), of Qwen3-Coder (XML), of
Llama 3.1 (JSON) and of Llama 3.2 and 4 (a Python list of calls). With an endpoint of OpenAI's API
(``openai``), calls are in a separate field, and the policy rewrites them in Hermes notation."""
