"""Functions, and how a person calls them."""

from __future__ import annotations

import json

import pytest

from coevo_gym.core.tool_calls import Call
from coevo_gym.core.trajectory import View
from coevo_gym.envs.bfcl.engine.official_calls import parse_message
from coevo_gym.testing import make_env
from coevo_gym.view.play.game import RefusedAction
from coevo_gym.view.play.tools import (
    ToolParameter,
    call_message,
    parse_line,
    parse_value,
    read_tools,
)

SCHEMA = {
    "name": "mv",
    "description": "This tool belongs to files. Tool description: Moves a file.",
    "parameters": {
        "type": "object",
        "properties": {
            "force": {"type": "boolean", "description": "Overwrite.", "default": False},
            "source": {"type": "string", "description": "What."},
            "tags": {"type": "array", "items": {"type": "string"}, "description": "Tags."},
        },
        "required": ["source"],
    },
}
VIEW = View("", "", {"bfcl.tools": json.dumps([{"type": "function", "function": SCHEMA}])})
TOOLS = read_tools(VIEW)


def test_a_tool_schema_is_parsed_into_a_signature_and_parameters() -> None:
    (tool,) = TOOLS
    assert tool.about == "Moves a file."
    assert tool.signature == "mv(source, force?, tags?)"
    assert [p.type for p in tool.parameters] == ["string", "boolean", "array of string"]
    assert tool.parameters[1].default == "false"
    assert read_tools(View("", "")) == ()


def test_all_functions_of_bfcl_are_parsed() -> None:
    env = make_env("bfcl")
    offered = json.loads(env.view.info["bfcl.tools"])
    assert [tool.name for tool in read_tools(env.view)] == [t["function"]["name"] for t in offered]
    env.close()


@pytest.mark.parametrize(
    "line", ["mv(source='a')", "[mv(source='a')]", "mv(source='a'), mv('b')", " mv('a') "]
)
def test_calls_are_accepted_with_or_without_brackets(line: str) -> None:
    text = parse_line(line, TOOLS)
    assert isinstance(text, str)
    calls = parse_message(text)
    assert calls
    assert all(isinstance(call, Call) and call.name == "mv" for call in calls)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("mv a b", "mv is a function: call it as mv(source, force?, tags?)."),
        ("mv", "mv is a function: call it as mv(source, force?, tags?)."),
        ("mv(source=a)", "a is not a literal"),
        ("mv('a'", "is not a list of calls"),
        ("mv('a') now", "is not a list of calls"),
        ("mv(sourse='a')", "mv has no argument sourse: call it as mv(source, force?, tags?)."),
        ("[mv('a'), mv('a', b=3)]", "mv has no argument b"),
        ('<tool_call>{"name": "mv", "arguments": {"b": 3}}</tool_call>', "mv has no argument b"),
        ("mv()", "mv needs the argument source"),
        ("mv(force=True)", "mv needs the argument source"),
        ("mv('a', True, [], 4)", "mv takes at most 3 arguments"),
        ("mvv()", "There is no function mvv. Did you mean mv?"),
        ("MV('a')", "There is no function MV. Did you mean mv?"),
        ("mvv('a' b", "There is no function mvv. Did you mean mv?"),
        ("mvv a", "There is no function mvv. Did you mean mv?"),
        ("files.mv('a')", "There is no function files.mv. Did you mean mv?"),
        ("mv('a'), foo(bar=1)", "There is no function foo."),
        ("foo(mv('a'))", "There is no function foo."),
        ('<tool_call>{"name": "mvv", "arguments": {}}</tool_call>', "Did you mean mv?"),
        ("<tool_call>mv('a')</tool_call>", "is not JSON"),
        ("end mvv()", "looks like a call"),
        ("end [mv('a')]", "looks like a call"),
        ("mv has moved the file that you asked for", "To end the turn, type end"),
        ("I have moved the file.", "To end the turn, type end"),
        ("[]", "To end the turn, type end"),
        ("", "To end the turn, type end"),
    ],
)
def test_a_line_without_a_valid_call_is_refused_with_a_reason(line: str, reason: str) -> None:
    result = parse_line(line, TOOLS)
    assert isinstance(result, RefusedAction)
    assert reason in result.reason


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("end", "Done."),
        (" End ", "Done."),
        ("end I moved it (twice).", "I moved it (twice)."),
        ("Done.", "Done."),  # a choice of the benchmark itself
    ],
)
def test_the_end_command_ends_the_turn(line: str, text: str) -> None:
    assert parse_line(line, TOOLS) == text
    assert parse_message(text) == ()


@pytest.mark.parametrize(
    ("kind", "typed", "value"),
    [
        ("string", "a b", "a b"),
        ("string", "'a'", "a"),
        ("integer", "3", 3),
        ("boolean", "true", True),
        ("boolean", "True", True),
        ("array of string", '["a"]', ["a"]),
        ("array of string", "['a']", ["a"]),
    ],
)
def test_argument_values_may_be_typed_as_json_or_python(
    kind: str, typed: str, value: object
) -> None:
    parameter = ToolParameter("x", kind, "", True)
    assert parse_value(parameter, typed) == value
    (call,) = parse_message(call_message("mv", {"x": value}))
    assert isinstance(call, Call)
    assert call.arguments == {"x": value}


def test_a_value_that_is_no_literal_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a literal"):
        parse_value(ToolParameter("x", "integer", "", True), "three(")
