"""Calls of tools in a model's answer are read in five notations; what cannot be read is data.

The readings in ``tool_calls/`` are written by hand, from public descriptions of the notations.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from coevo_gym.agents.endpoint.endpoint import read_reply
from coevo_gym.core.notations import NOTATIONS, read_calls
from coevo_gym.core.tool_calls import Call, Malformed, read_hermes, write_hermes
from coevo_gym.envs.rows.tools import ToolSet

FOLDER = Path(__file__).parent / "tool_calls"
Case = tuple[str, str, list[Any]]
"""A title, an answer and its reading: calls as [name, arguments], or kinds of errors."""


class Point(BaseModel):
    x: int
    y: int


def ping() -> None:
    """Do nothing."""


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def greet(name: str, times: int = 1) -> str:
    """Greet somebody."""
    return name * times


def set_text(value: str) -> None: ...
def set_int(value: int) -> None: ...
def set_number(value: float) -> None: ...
def set_flag(value: bool) -> None: ...
def set_list(value: list[int]) -> None: ...
def set_names(value: list[str]) -> None: ...
def set_object(value: dict[str, Any]) -> None: ...
def set_maybe(value: int | None = None) -> None: ...
def set_colour(value: Literal["red", "green"]) -> None: ...
def set_point(value: Point) -> None: ...


TOOLS = ToolSet(
    [
        *(ping, add, greet, set_text, set_int, set_number, set_flag),
        *(set_list, set_names, set_object, set_maybe, set_colour, set_point),
    ]
)


def structures(notation: str) -> Iterator[Case]:
    """Cases of calls in the notation: one, several, text around, cut off, wrong names."""
    text = (FOLDER / f"{notation}.txt").read_text(encoding="utf-8")
    for block in text.split("### ")[1:]:
        title, _, rest = block.partition("\n")
        answer, mark, reading = rest.rpartition("\n>>> ")
        assert mark, title
        yield title, answer, json.loads(reading)


SPELLING = {"hermes": 2, "llama3": 2, "openai": 2, "qwen3_coder": 3, "pythonic": 4}
"""The column of a notation in the table of values."""
ONE = {
    "hermes": '<tool_call>\n{"name": "NAME", "arguments": {"value": VALUE}}\n</tool_call>',
    "llama3": '{"name": "NAME", "parameters": {"value": VALUE}}',
    "qwen3_coder": "<tool_call>\n<function=NAME>\n<parameter=value>\nVALUE\n</parameter>\n"
    "</function>\n</tool_call>",
    "pythonic": "NAME(value=VALUE)",
}
PING = {
    "hermes": '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>\n',
    "llama3": '<|python_tag|>{"name": "ping", "parameters": {}}; ',
    "qwen3_coder": "Go.\n<tool_call>\n<function=ping>\n</function>\n</tool_call>\n",
    "pythonic": "ping(), ",
}


def spelled(notation: str, name: str, value: str, *, after: bool) -> str:
    """An answer with a value, as the only call or after another one."""
    if notation == "openai":
        functions = [{"name": name, "arguments": f'{{"value": {value}}}'}]
        if after:
            functions.insert(0, {"name": "ping", "arguments": "{}"})
        calls = [{"id": "1", "type": "function", "function": one} for one in functions]
        return json.dumps({"content": "Go." if after else None, "tool_calls": calls})
    one = ONE[notation].replace("NAME", name).replace("VALUE", value)
    code = PING[notation] + one if after else one
    return f"[{code}]" if notation == "pythonic" else code


def values(notation: str) -> Iterator[Case]:
    """Cases of every value that has a spelling, as the only call and after another one."""
    for line in (FOLDER / "values.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        columns = line.replace("⏎", "\n").replace("␠", " ").split(" | ")
        kind, reading, value = columns[0], columns[1], columns[SPELLING[notation]]
        if value == "-":
            continue
        if reading.startswith("!"):
            read: Any = reading[1:]
            if read == "block" and notation in ("openai", "pythonic"):
                read = "call"  # there are no blocks
        else:
            read = [f"set_{kind}", {"value": json.loads(reading)}]
        yield line, spelled(notation, f"set_{kind}", value, after=False), [read]
        spoiled = notation == "pythonic" and read == "call"  # a list is read as a whole
        both = ["call"] if spoiled else [["ping", {}], read]
        yield f"ping, {line}", spelled(notation, f"set_{kind}", value, after=True), both


def reading(notation: str, answer: str) -> list[Any]:
    if notation == "openai":
        body = {"choices": [{"message": json.loads(answer), "finish_reason": "tool_calls"}]}
        reply = read_reply(json.dumps(body).encode())
        assert reply is not None
        answer = reply.text_with_calls
    items = read_calls(notation, answer, TOOLS.schemas)
    # An env reads what an agent has written.
    assert repr(read_hermes(write_hermes(items))) == repr(items)
    rows: list[Any] = []
    for item in items:
        checked = TOOLS.parse_arguments(item) if isinstance(item, Call) else item
        if isinstance(checked, Malformed):
            assert checked.reason
            rows.append(checked.kind)
        else:
            assert isinstance(item, Call)
            rows.append([item.name, dict(item.arguments)])
    return rows


def same(one: object, other: object) -> bool:
    """Equal, with the same types: 1 is not true, and not 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@pytest.mark.parametrize("notation", NOTATIONS)
def test_parsed_calls_equal_those_of_the_table(notation: str) -> None:
    cases = [*structures(notation), *values(notation)]
    assert len(cases) >= 250
    wrong = [
        f"{title!r}: {answer!r} is {actual}, not {wanted}"
        for title, answer, wanted in cases
        if not same(actual := reading(notation, answer), wanted)
    ]
    assert not wrong, "\n".join(wrong)


# Any text.

SNIPPETS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<function=", "<function=add>", "</function>", ">"),
        *("<parameter=a>", "</parameter>", "<|python_tag|>", "<|python_start|>", "[", "]", "{"),
        *("}", '"name"', '"add"', ": ", ", ", '"parameters"', '"arguments"', "add(", "a=1", ")"),
        *("ping()", "\\", "'", '"', "\n", "1e999", "NaN", "\ud800", "\0", "\u2028", "true", ";"),
    ]
)
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=())), st.lists(SNIPPETS, max_size=40).map("".join)
)


@given(st.sampled_from([*NOTATIONS]), TEXTS)
def test_any_text_is_parsed_without_an_exception(notation: str, text: str) -> None:
    for item in read_calls(notation, text, TOOLS.schemas):
        if isinstance(item, Call):
            TOOLS.parse_arguments(item)
        else:
            assert isinstance(item, Malformed)
            assert len(item.reason) < 500


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.one_of(JSON, st.lists(st.fixed_dictionaries({"function": JSON}))))
def test_any_tool_calls_of_an_endpoint_are_parsed_without_an_exception(calls: Any) -> None:
    message = {"content": None, "tool_calls": calls}
    for kind in reading("openai", json.dumps(message)):
        assert isinstance(kind, list) or kind in ("call", "tool", "arguments", "block")


NAMES = st.text("abcdefgh_", min_size=1, max_size=5)
WRITABLE = st.recursive(
    st.booleans() | st.integers(-(2**70), 2**70) | st.text("ab é'\"\\\n<>&{}[]", min_size=0),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=4,
)


@given(
    st.sampled_from([*NOTATIONS]),
    st.lists(
        st.builds(Call, NAMES, st.dictionaries(NAMES, WRITABLE, max_size=3), st.just(())),
        min_size=1,
        max_size=3,
    ),
)
def test_written_calls_are_parsed_back(notation: str, calls: list[Call]) -> None:
    parameters = {
        call.name: {"type": "object", "properties": dict.fromkeys(call.arguments, ANY_TYPE)}
        for call in calls
    }
    if notation == "qwen3_coder":  # every value has its type from the schema, so texts suffice
        texts = [{key: json.dumps(value) for key, value in c.arguments.items()} for c in calls]
        calls = [Call(c.name, text) for c, text in zip(calls, texts, strict=True)]
        parameters = {}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in parameters.items()
    ]
    text = NOTATIONS[notation].write(calls)
    assert read_calls(notation, text, json.dumps(tools)) == tuple(calls)


ANY_TYPE: dict[str, Any] = {}

SHAPES = {
    "open": "<tool_call>",
    "open and close": "<tool_call></tool_call>",
    "function": "<tool_call><function=f>",
    "functions without end": "<function=f",
    "parameters": "<tool_call><function=f><parameter=a>",
    "values": "<parameter=a></parameter>",
    "objects": '{"name": ',
    "lines of objects": '\n{"name": 1}',
    "blanks": '\n{    "',
    "spaces": " \n",
    "tags": "<|python_tag|>",
    "lists": "[f(",
    "nested": "[",
    "nested objects": '{"a":',
    "calls": "[ping(), ",
    "minus": "-",
    "text": "a",
}


BEGINNINGS = {
    "hermes": '<tool_call>{"name": "',
    "qwen3_coder": "<tool_call><function=f><parameter=a>",
    "llama3": '{"name": "',
    "pythonic": "[f(",
}


@pytest.mark.parametrize("notation", BEGINNINGS)
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_megabyte_is_parsed_in_linear_work(notation: str, begun: bool, shape: str) -> None:
    """Lines of Python do not grow with more than the text; a regular expression counts as one."""

    begin = BEGINNINGS[notation] if begun else ""

    def work(n: int) -> int:
        text, lines = begin + SHAPES[shape] * (n // len(SHAPES[shape])), 0

        def count(frame: Any, event: str, argument: Any) -> Any:
            nonlocal lines
            lines += 1
            return count

        sys.settrace(count)
        try:
            read_calls(notation, text, TOOLS.schemas)
        finally:
            sys.settrace(None)
        return lines

    assert work(40_000) <= 9 * work(5_000) + 1_000
    read_calls(notation, begin + SHAPES[shape] * (1_000_000 // len(SHAPES[shape])), TOOLS.schemas)
