"""Parsing of arbitrary model answers into values of a schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from coevo_gym.core.spaces import clean_text
from coevo_gym.prompts.answers import without_thoughts

ModelT = TypeVar("ModelT", bound=BaseModel)

MAX_CHARS = 20_000
"""Maximum length of a string in an answer; longer strings are cut."""
_DEEPEST = 64
_FENCES = 8
_SAID = 300
_BRACKETS = re.compile(r'["\\{}\[\]]')


class Unreadable(ValueError):
    """Raised for an unusable answer; the message tells the model how to fix it."""


def read_answer(text: str, schema: type[ModelT]) -> ModelT:
    """Return the value in an answer.

    The value is the last fenced block of JSON, or else the text between the outermost braces.
    Thoughts are ignored. Unknown fields are dropped, and strings are cut at :data:`MAX_CHARS` and
    cleaned of characters that UTF-8 cannot encode.

    Raises:
        Unreadable: if the answer has no valid value.

    Example:
        >>> class Point(BaseModel):
        ...     x: int
        >>> read_answer('<think>{}</think>Here it is: {"x": 3, "why": "it is"}', Point)
        Point(x=3)
    """
    try:
        return _fitted(_cleaned(_found(without_thoughts(text))), schema)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        said = f"{place}: {first['msg']}" if place else first["msg"]
        raise Unreadable(clean_text(said, _SAID)) from error
    except RecursionError as error:
        raise Unreadable("it is nested too deeply") from error


def _found(text: str) -> dict[str, Any]:
    """Return the JSON object in a text."""
    if text.startswith("{") and text.endswith("}"):  # its strings may contain fences
        return _parsed(text)
    parts = text.split("```")
    for number in list(range(1, len(parts), 2))[: -_FENCES - 1 : -1]:
        if "{" in parts[number]:
            try:
                return _parsed(_within_braces(parts[number]))
            except Unreadable:
                continue  # a fence may also be inside a string
    if "{" not in text:
        raise Unreadable("there is no JSON object in it")
    return _parsed(_within_braces(text))


def _within_braces(text: str) -> str:
    """Return the text from the first opening brace to the last closing one, or to the end."""
    begin, end = text.find("{"), text.rfind("}")
    return text[begin : end + 1] if end > begin else text[begin:]


def _parsed(text: str) -> dict[str, Any]:
    _check_depth(text)
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise Unreadable(f"it is no JSON: {error}") from error
    except Unreadable:
        raise
    except ValueError as error:  # an integer with thousands of digits
        raise Unreadable("it holds a number that is too large") from error
    if not isinstance(value, dict):
        raise Unreadable("it is no JSON object")
    return value


def _check_depth(text: str) -> None:
    """Reject text whose nesting could overflow the stack of the parser."""
    depth, quoted, skip = 0, False, -1
    for match in _BRACKETS.finditer(text):
        place, mark = match.start(), match[0]
        if place == skip:
            continue
        if mark == "\\":
            skip = place + 1
        elif mark == '"':
            quoted = not quoted
        elif not quoted:
            depth += 1 if mark in "{[" else -1
            if depth > _DEEPEST:
                raise Unreadable(f"it is nested deeper than {_DEEPEST}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise Unreadable(f"it has the key {clean_text(key, 64)!r} twice")
        found[key] = value
    return found


def _no_number(name: str) -> NoReturn:
    raise Unreadable(f"{name} is no number of JSON")


def _cleaned(value: Any) -> Any:
    """Return a JSON value with short, encodable strings and finite numbers."""
    if isinstance(value, str):
        return clean_text(value, MAX_CHARS)
    if isinstance(value, float) and not math.isfinite(value):
        raise Unreadable("it holds a number that is too large")
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, Mapping):
        return {clean_text(key, MAX_CHARS): _cleaned(item) for key, item in value.items()}
    return value


def _fitted(value: dict[str, Any], schema: type[ModelT]) -> ModelT:
    """Validate a value; schemas that forbid unknown fields get a value without them."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        unknown = [e["loc"] for e in error.errors(include_url=False) if e["type"] == _UNKNOWN]
        if not unknown:
            raise
    for place in unknown:
        _drop(value, place)
    return schema.model_validate(value)


_UNKNOWN = "extra_forbidden"


def _drop(value: Any, place: tuple[str | int, ...]) -> None:
    *above, last = place
    for part in above:
        if isinstance(part, str):
            # Otherwise the part names a member of a union, which is not a place in the value.
            value = value.get(part, value) if isinstance(value, dict) else value
        elif isinstance(value, list) and part < len(value):
            value = value[part]
    if isinstance(value, dict):
        value.pop(last, None)
