"""A parser and a formatter for function calls.

Two notations are parsed: JSON between ``<tool_call>`` tags, as in Hermes and Qwen, and a Python
list of calls such as ``[cd(folder='a'), ls()]``. A wrapper converts OpenAI's tool calls to
JSON. Nothing is ever evaluated: JSON is decoded, and Python is parsed and must consist of
literals. Parsing takes time linear in the length of the text.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from coevo_gym.core.errors import TaskError
from coevo_gym.core.thoughts import without_thoughts

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_WRAPPING = "`\n "
_SHOWN = 80
_MAX_DIGITS = 1_000
_TOO_LARGE = 10**_MAX_DIGITS
_MAX_DEPTH = 100
_TOO_DEEP = f"it is nested more than {_MAX_DEPTH} levels deep"
_TOO_MANY_DIGITS = f"an int has more than {_MAX_DIGITS:,} digits"


class Call(NamedTuple):
    """One function call.

    Attributes:
        name: the function, as the model wrote it.
        arguments: argument values, by parameter name.
        positional: positional argument values; only in Python notation.
    """

    name: str
    arguments: Mapping[str, Any]
    positional: tuple[Any, ...] = ()


class Malformed(NamedTuple):
    """A call that cannot be parsed.

    Attributes:
        reason: description of the error.
        spoils: True if the official decoder rejects the whole message; it only skips a block that
            is not JSON at all.
    """

    reason: str
    spoils: bool


def parse_message(text: str) -> tuple[Call | Malformed, ...]:
    """Parse the calls in a message, in order.

    Thoughts are ignored, including a thought without a closing tag.

    Example:
        >>> parse_message('<tool_call>{"name": "cd", "arguments": {"folder": "a"}}</tool_call>')
        (Call(name='cd', arguments={'folder': 'a'}, positional=()),)
        >>> parse_message("[ls(), sort('a.txt')]")[1]
        Call(name='sort', arguments={}, positional=('a.txt',))
        >>> parse_message("It is done.")
        ()
    """
    answer = without_thoughts(text)
    if _OPEN in answer:
        return tuple(_blocks(_Unnumbered(answer)))
    code = answer.strip(_WRAPPING)
    if code.startswith("[") and code.endswith("]"):
        return parse_python(code)
    return ()


def parse_python(code: str) -> tuple[Call | Malformed, ...]:
    """Parse a Python list of calls, or return one :class:`Malformed` if any part is invalid."""
    try:
        # An unknown escape is kept as two characters, without Python's warning.
        tree = ast.parse(_escape(code), mode="eval").body
        if not isinstance(tree, ast.List):
            raise ValueError("not a list of calls")
        return tuple(_python_call(node) for node in tree.elts)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        return (Malformed(f"{_brief(code)} is not a list of calls: {_brief(str(error))}", True),)


def literal(code: str) -> Any:
    """Parse a Python literal.

    Raises:
        ValueError: if the code is not a literal, or contains an int of more than 1,000 digits.
    """
    try:
        return _literal(ast.parse(code, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{_brief(code)} is not a literal: {error}") from error


@lru_cache(maxsize=8192)
def parse_truth(code: str) -> Call:
    """Parse one call from the official ground truth, such as ``sort('final_report.pdf')``.

    Raises:
        TaskError: if the code is not a single call with literal arguments.
    """
    call, *more = parse_python(f"[{code}]") or (Malformed("no call", True),)
    if more or isinstance(call, Malformed):
        raise TaskError(f"{code!r} is not a single call with literal arguments")
    return call


def python(call: Call) -> str:
    """Format a call in the notation of the official ground truth.

    Example:
        >>> python(Call("sort", {"file_name": "a.txt"}))
        "sort(file_name='a.txt')"
    """
    keywords = (f"{name}={value!r}" for name, value in call.arguments.items())
    return f"{call.name}({', '.join([*map(repr, call.positional), *keywords])})"


def hermes(calls: Sequence[Call]) -> str:
    """Format calls as a message in Hermes notation, which has no positional arguments.

    Example:
        >>> print(hermes([Call("cd", {"folder": "a"})]))
        <tool_call>
        {"name": "cd", "arguments": {"folder": "a"}}
        </tool_call>
    """
    return "\n".join(
        f"{_OPEN}\n"
        + json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        + f"\n{_CLOSE}"
        for call in calls
    )


class _Unnumbered(str):
    """A ``str`` subclass that skips slow line counting when a JSON error is raised."""

    def count(self, *_: Any) -> int:
        return 0

    def rfind(self, *_: Any) -> int:
        return -1


def _int(digits: str) -> int:
    """Parse a JSON integer.

    Raises:
        ValueError: if it has more than 1,000 digits.
    """
    if len(digits.removeprefix("-")) > _MAX_DIGITS:
        raise ValueError(_TOO_MANY_DIGITS)
    return int(digits)


class _Decoder(json.JSONDecoder):
    """A decoder with the same limit on nesting for every version of Python."""

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        try:
            value, stop = super().raw_decode(s, idx)
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        level = [value]
        for _ in range(_MAX_DEPTH):
            level = [inner for outer in level for inner in _items(outer)]
        if level:
            raise ValueError(_TOO_DEEP)
        return value, stop


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


_DECODER = _Decoder(parse_int=_int)
_SPACE = re.compile(r"\s*")


def _blocks(text: str) -> Iterator[Call | Malformed]:
    """Yield the calls between the tool-call tags in a message.

    A block ends at the first closing tag after its JSON, so a string may contain the tag.
    """
    start = text.find(_OPEN)
    while start >= 0:
        start = _skip(text, start + len(_OPEN))
        try:
            value, stop = _DECODER.raw_decode(text, start)
            problem = ""
        except ValueError as error:
            stop, problem = start, _brief(str(error))
        end = text.find(_CLOSE, stop)
        if not problem and 0 <= end != _skip(text, stop):
            problem = "text follows it"
        if end < 0:
            yield Malformed(f"{_CLOSE} is missing after {_brief(text[start:])}", False)
            return
        if problem:
            yield Malformed(f"{_brief(text[start:end])} is not JSON: {problem}", False)
        else:
            yield _json_call(value)
        start = text.find(_OPEN, end)


def _skip(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    return match.end() if match else start


def _json_call(value: Any) -> Call | Malformed:
    """Convert the value of a JSON block into a call."""
    if not isinstance(value, dict):
        return Malformed(f"{_brief(repr(value))} is not an object with name and arguments", True)
    name, arguments = value.get("name"), value.get("arguments")
    if not isinstance(name, str) or not name:
        return Malformed(f"{_brief(repr(value))} has no name", True)
    if isinstance(arguments, str):
        try:
            arguments = _DECODER.decode(arguments)
        except ValueError as error:
            return Malformed(f"the arguments of {_brief(repr(name))} are not JSON: {error}", True)
    if not isinstance(arguments, dict):
        return Malformed(f"the arguments of {_brief(repr(name))} are not an object", True)
    return Call(name, arguments)


def _python_call(node: ast.expr) -> Call:
    """Convert a Python expression to a call.

    Raises:
        ValueError: if the expression is not a call, or an argument is not a literal.
    """
    if not isinstance(node, ast.Call):
        raise ValueError(f"{_brief(ast.unparse(node))} is not a call")
    positional = tuple(_literal(argument) for argument in node.args)
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("** is not a literal argument")
        arguments[keyword.arg] = _literal(keyword.value)
    return Call(ast.unparse(node.func), arguments, positional)


def _literal(node: ast.expr) -> Any:
    # Python parses hexadecimal ints of any length, but cannot print more than 4,300 digits.
    numbers = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    if any(type(number) is int and number >= _TOO_LARGE for number in numbers):
        raise ValueError(_TOO_MANY_DIGITS)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"{_brief(ast.unparse(node))} is not a literal") from None


_RAW_STRING = re.compile(r"\b(?:[bB]?[rR]|[rR][bB])['\"]")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_KNOWN_ESCAPES = frozenset("\\'\"abfnrtvxuUN01234567\n")


def _escape(code: str) -> str:
    """Double the backslashes in unknown escape sequences, unless the code has raw strings."""
    if _RAW_STRING.search(code):
        return code
    return _ESCAPE.sub(lambda m: m[0] if m[1] in _KNOWN_ESCAPES else "\\" + m[0], code)


def _brief(text: str) -> str:
    """Shorten text for use in a message."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
