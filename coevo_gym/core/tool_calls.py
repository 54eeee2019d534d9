"""Function calls written by a model, in Hermes notation or as a Python list of calls.

Nothing is ever evaluated: JSON is decoded, and Python is parsed and must consist of literals.
Reading takes time linear in the length of the text. Text that cannot be read is data
(:class:`Malformed`), never an exception.

The envs read Hermes notation. Agents read the notation of their model
(``coevo_gym.core.notations``), and write Hermes notation for the env (:func:`write_hermes`).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_RESULT_OPENS, _RESULT_CLOSES = "<tool_response>\n", "\n</tool_response>"
_SHOWN = 80
MAX_DIGITS = 1_000
_TOO_LARGE = 10**MAX_DIGITS
MAX_DEPTH = 100
_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"
_TOO_MANY_DIGITS = f"an int has more than {MAX_DIGITS:,} digits"


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


MalformedKind = Literal["block", "call", "tool", "arguments"]


class Malformed(NamedTuple):
    """A call that cannot be parsed, or that does not fit the available tools.

    Attributes:
        kind: ``"block"`` if a block of the text cannot be parsed (other blocks may be valid);
            ``"call"`` if it can, but is not a call; ``"tool"`` if there is no such tool;
            ``"arguments"`` if the arguments do not fit the tool.
        reason: description of the error.
    """

    kind: MalformedKind
    reason: str

    @property
    def spoils_message(self) -> bool:
        """True if BFCL's official decoder rejects the whole message, not only a block of it."""
        return self.kind != "block"


def parse_python(code: str, names: Mapping[str, Any] | None = None) -> tuple[Call | Malformed, ...]:
    """Parse a Python list of calls, or return one :class:`Malformed` if any part is invalid.

    ``names`` are values that an argument may refer to by name.
    """
    try:
        # An unknown escape is kept as two characters, without Python's warning.
        tree = ast.parse(_escape_backslashes(code), mode="eval").body
        if not isinstance(tree, ast.List):
            raise ValueError("not a list of calls")
        return tuple(_call_from_python(node, names or {}) for node in tree.elts)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        return (
            Malformed("call", f"{shorten(code)} is not a list of calls: {shorten(str(error))}"),
        )


def parse_literal(code: str) -> Any:
    """Parse a Python literal.

    Raises:
        ValueError: if the code is not a literal, or contains an int of more than 1,000 digits.
    """
    try:
        return _literal_value(ast.parse(code, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{shorten(code)} is not a literal: {error}") from error


def read_hermes(text: str) -> tuple[Call | Malformed, ...]:
    """Read the calls between ``<tool_call>`` tags, each of which is JSON; other text is ignored."""
    return tuple(_read_blocks(Unnumbered(text)))


def write_hermes(calls: Iterable[Call | Malformed]) -> str:
    """Write calls in Hermes notation, which has no positional arguments.

    A malformed call is written as its kind and reason, which :func:`read_hermes` reads back.

    Example:
        >>> print(write_hermes([Call("cd", {"folder": "a"})]))
        <tool_call>
        {"name": "cd", "arguments": {"folder": "a"}}
        </tool_call>
    """
    return _write_blocks(
        {"error": call.reason, "kind": call.kind}
        if isinstance(call, Malformed)
        else {"name": call.name, "arguments": call.arguments}
        for call in calls
    )


def tool_calls_to_hermes(tool_calls: object) -> str:
    """Write the ``tool_calls`` of an OpenAI assistant message in Hermes notation.

    The input may contain anything: an item that is not a call is written unchanged, and the reader
    rejects it. Missing arguments become an empty object, because some models leave them out for
    functions without parameters.
    """
    blocks = []
    for call in tool_calls if isinstance(tool_calls, list | tuple) else [tool_calls]:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            blocks.append(call)
            continue
        arguments = function.get("arguments") or "{}"
        if isinstance(arguments, str) and arguments.strip() in ("", "null"):
            arguments = "{}"
        blocks.append({"name": function.get("name"), "arguments": arguments})
    return _write_blocks(blocks)


def _write_blocks(values: Iterable[object]) -> str:
    """Write JSON values between call tags. Thought tags, which would hide calls, are escaped."""
    texts = (json.dumps(value, ensure_ascii=False) for value in values)
    return "\n".join(f"{OPEN}\n{_THOUGHT.sub(_ESCAPED, text)}\n{CLOSE}" for text in texts)


_THOUGHT, _ESCAPED = re.compile(r"<(/?think>)"), r"\\u003c\1"


def split_results(text: str, n: int) -> tuple[tuple[str, ...], str]:
    r"""Split an observation into the results of ``n`` calls and the text that follows them.

    A result is between ``<tool_response>`` tags. If the number of results differs from ``n``,
    because a result contains such a tag, the first result is the whole text, and the others are "".

    Example:
        >>> split_results("<tool_response>\n3\n</tool_response>\nMore?", 1)
        (('3',), 'More?')
    """
    body, _, rest = text.rpartition(_RESULT_CLOSES)
    results = body.removeprefix(_RESULT_OPENS).split(f"{_RESULT_CLOSES}\n{_RESULT_OPENS}")
    if not body.startswith(_RESULT_OPENS) or len(results) != n:
        return (text, *[""] * (n - 1)), ""
    return tuple(results), rest.strip()


def write_result(text: str) -> str:
    """Format the result of a call for the agent."""
    return f"{_RESULT_OPENS}{text}{_RESULT_CLOSES}"


class Unnumbered(str):
    """A ``str`` subclass that skips slow line counting when a JSON error is raised."""

    def count(self, *_: Any) -> int:
        """Return 0."""
        return 0

    def rfind(self, *_: Any) -> int:
        """Return -1."""
        return -1


def _parse_int(digits: str) -> int:
    """Parse a JSON integer.

    Raises:
        ValueError: if it has more than 1,000 digits.
    """
    if len(digits.removeprefix("-")) > MAX_DIGITS:
        raise ValueError(_TOO_MANY_DIGITS)
    return int(digits)


class _Decoder(json.JSONDecoder):
    """A decoder whose nesting limit is the same in every version of Python."""

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        try:
            value, stop = super().raw_decode(s, idx)
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        level = [value]
        for _ in range(MAX_DEPTH):
            level = [inner for outer in level for inner in _child_values(outer)]
        if level:
            raise ValueError(_TOO_DEEP)
        return value, stop


def _child_values(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


DECODER = _Decoder(parse_int=_parse_int)
"""A JSON decoder with limits on nesting and digits; exceeding a limit raises ``ValueError``."""
_SPACE = re.compile(r"\s*")


def _read_blocks(text: str) -> Iterator[Call | Malformed]:
    """Yield the calls between the tool-call tags in a message.

    A block ends at the first closing tag after its JSON, so a string may contain the tag.
    """
    start = text.find(OPEN)
    while start >= 0:
        start = skip_blanks(text, start + len(OPEN))
        try:
            value, stop = DECODER.raw_decode(text, start)
            problem = ""
        except ValueError as error:
            stop, problem = start, shorten(str(error))
        end = text.find(CLOSE, stop)
        if not problem and 0 <= end != skip_blanks(text, stop):
            problem = "text follows it"
        if end < 0:
            yield Malformed("block", f"{CLOSE} is missing after {shorten(text[start:])}")
            return
        if problem:
            yield Malformed("block", f"{shorten(text[start:end])} is not JSON: {problem}")
        else:
            yield call_from_json(value)
        start = text.find(OPEN, end)


def skip_blanks(text: str, start: int) -> int:
    """Return the position of the first character that is not blank, or the end of the text."""
    match = _SPACE.match(text, start)
    return match.end() if match else start


def call_from_json(value: Any, key: str = "arguments") -> Call | Malformed:
    """Convert the value of a JSON block into a call. ``key`` is the key of its arguments."""
    if not isinstance(value, dict):
        return Malformed("call", f"{shorten(repr(value))} is not an object with name and {key}")
    if value.keys() == {"error", "kind"} and value["kind"] in get_args(MalformedKind):
        return Malformed(value["kind"], str(value["error"]))  # as write_hermes() writes it
    name, arguments = value.get("name"), value.get(key)
    if not isinstance(name, str) or not name:
        return Malformed("call", f"{shorten(repr(value))} has no name")
    if isinstance(arguments, str):
        try:
            arguments = DECODER.decode(arguments)
        except ValueError as error:
            return Malformed("call", f"the {key} of {shorten(repr(name))} are not JSON: {error}")
    if not isinstance(arguments, dict):
        return Malformed("call", f"the {key} of {shorten(repr(name))} are not an object")
    return Call(name, arguments)


def _call_from_python(node: ast.expr, known: Mapping[str, Any]) -> Call:
    """Convert a Python expression to a call.

    Raises:
        ValueError: if the expression is not a call, or an argument is not a literal.
    """
    if not isinstance(node, ast.Call):
        raise ValueError(f"{shorten(ast.unparse(node))} is not a call")
    positional = tuple(_literal_value(argument, known) for argument in node.args)
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("** is not a literal argument")
        arguments[keyword.arg] = _literal_value(keyword.value, known)
    return Call(ast.unparse(node.func), arguments, positional)


def _literal_value(node: ast.expr, known: Mapping[str, Any] | None = None) -> Any:
    if known:
        node = _Names(known).visit(node)
    # Python parses hexadecimal ints of any length, but cannot print more than 4,300 digits.
    numbers = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    if any(type(number) is int and number >= _TOO_LARGE for number in numbers):
        raise ValueError(_TOO_MANY_DIGITS)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"{shorten(ast.unparse(node))} is not a literal") from None


class _Names(ast.NodeTransformer):
    """A transformer that replaces known names with their values."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._known[node.id]) if node.id in self._known else node


_RAW_STRING = re.compile(r"\b(?:[bB]?[rR]|[rR][bB])['\"]")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_KNOWN_ESCAPES = frozenset("\\'\"abfnrtvxuUN01234567\n")


def _escape_backslashes(code: str) -> str:
    """Double the backslashes in unknown escape sequences, unless the code has raw strings."""
    if _RAW_STRING.search(code):
        return code
    return _ESCAPE.sub(lambda m: m[0] if m[1] in _KNOWN_ESCAPES else "\\" + m[0], code)


def shorten(text: str) -> str:
    """Shorten text for use in a message."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
