"""The choices of a dialogue: calls that fit the tools, made of what the agent has seen."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.evolution import Context
from coevo_gym.core.task import FrozenDict, Split, Task
from coevo_gym.core.tool_calls import Call
from coevo_gym.core.trajectory import PastStep, View
from coevo_gym.envs.bfcl.choices import MAX_CHOICES, split_calls
from coevo_gym.envs.bfcl.engine.official_calls import parse_message
from coevo_gym.envs.bfcl.engine.tools import schemas_text
from coevo_gym.envs.bfcl.env import BFCLEnv
from coevo_gym.envs.bfcl.tasks import CLOSING, native_tasks
from coevo_gym.envs.bfcl.values import kind_of, values_in_results, values_in_text
from coevo_gym.envs.bfcl.words import purpose
from coevo_gym.envs.bfcl.world import BFCLVerifier
from coevo_gym.episodes.episode import trajectory_of

BFCL = get_benchmark("bfcl")
SOME = [task for c in BFCL.subsets for task in native_tasks(Split.TRAIN, c)[::30]]
TYPES: dict[str, Any] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list,
    "object": dict,
}  # fmt: skip


def views(task: Task) -> Iterator[View]:
    """What an agent sees that does as the reference does."""
    env = BFCLEnv(split=task.split, max_steps=1_000)
    env.reset(options={"task": task})
    for step in BFCL.demonstration(task):
        yield env.view
        _, _, terminated, truncated, _ = env.step(step)
        if terminated or truncated:
            return


def view(request: str, *functions: str, history: tuple[PastStep, ...] = (), now: str = "") -> View:
    info = FrozenDict({"bfcl.tools": schemas_text(functions)})
    return View(request, now or request, info, history)


def calls(seen: View) -> list[str]:
    """The choices without what they say before."""
    return [choice.rpartition("</think>")[2] for choice in BFCL.choices(seen)]


def test_a_choice_states_the_purpose_of_its_function() -> None:
    seen = view("Show the last three lines of log.txt.", "tail", "pwd")
    assert BFCL.choices(seen)[0] == CLOSING
    assert all(
        choice.startswith(f"<think>{purpose(name)}</think>[{name}(")
        for choice in BFCL.choices(seen)[1:]
        for name in [choice.rpartition("</think>[")[2].partition("(")[0]]
    )


def fits(value: Any, schema: dict[str, Any]) -> bool:
    if isinstance(value, bool) and schema["type"] != "boolean":
        return False
    if schema["type"] == "array":
        return isinstance(value, list) and all(fits(item, schema["items"]) for item in value)
    if schema["type"] == "object":
        fields = schema["properties"]
        return all(fits(item, fields[name]) for name, item in value.items())
    return isinstance(value, TYPES[schema["type"]])


@pytest.mark.parametrize("task", SOME, ids=lambda task: task.name)
def test_every_choice_is_one_call_that_fits_its_schema_or_ends_the_turn(task: Task) -> None:
    for seen in views(task):
        offered = {
            tool["function"]["name"]: tool["function"]["parameters"]
            for tool in json.loads(seen.info["bfcl.tools"])
        }
        choices = BFCL.choices(seen)
        assert choices[0] == CLOSING
        assert len(offered) <= len(choices) <= MAX_CHOICES
        assert len(set(choices)) == len(choices)
        for choice in choices[1:]:
            (call,) = parse_message(choice)
            assert isinstance(call, Call)
            schema = offered[call.name]  # no function that is not offered
            required = schema.get("required", [])
            assert len(call.positional) == len(required)
            assert not set(call.arguments) & set(required)
            arguments = dict(zip(required, call.positional, strict=True)) | dict(call.arguments)
            for name, value in arguments.items():
                assert fits(value, schema["properties"][name]), choice


def test_choices_do_not_depend_on_the_ground_truth() -> None:
    task, other = native_tasks(Split.TRAIN, "base")[:2]
    assert isinstance(task.verifier, BFCLVerifier)
    nothing = BFCLVerifier(turns=[[] for _ in task.verifier.turns])
    for verifier in (other.verifier, nothing):
        swapped = task.model_copy(update={"verifier": verifier})
        first, second = (BFCLEnv(split="train") for _ in range(2))
        first.reset(options={"task": task})
        second.reset(options={"task": swapped})
        assert BFCL.choices(first.view) == BFCL.choices(second.view)


SCRIPT = """
import hashlib
from tests.bfcl.test_choices import digest
print(digest())
"""


def digest() -> str:
    """Of all choices along a few references."""
    whole = hashlib.sha256()
    for task in SOME[::3]:
        for seen in views(task):
            whole.update("\n".join(BFCL.choices(seen)).encode())
    return whole.hexdigest()


def test_choices_are_the_same_in_other_processes() -> None:
    digests = {digest()}
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("request_", "function", "expected"),
    [
        (
            "Move 'final_report.pdf' to the 'temp' directory.",
            "mv",
            "mv('final_report.pdf', 'temp')",
        ),
        ("Show me all the files, hidden ones too.", "ls", "ls(a=True)"),
        ("Show the last three lines of log.txt.", "tail", "tail('log.txt', lines=3)"),
        ("Turn the headlights on.", "setHeadlights", "setHeadlights('on')"),
        (
            "Lock all the doors.",
            "lockDoors",
            "lockDoors(False, ['driver', 'passenger', 'rear_left', 'rear_right'])",
        ),
        ("Fund my account with $1,500.50.", "fund_account", "fund_account(1500.5)"),
        (
            "Tweet 'Hi there.' with #a and #b and mention @me.",
            "post_tweet",
            "post_tweet('Hi there.', tags=['#a', '#b'], mentions=['@me'])",
        ),
        (
            "What is a first class flight from SFO to LAX on October 3rd, 2026?",
            "get_flight_cost",
            "get_flight_cost('SFO', 'LAX', '2026-10-03', 'first')",
        ),
        ("Set the ticket 12 to priority 4.", "edit_ticket", "edit_ticket(12, {'priority': 4})"),
    ],
)
def test_choices_take_argument_values_from_the_request(
    request_: str, function: str, expected: str
) -> None:
    assert f"[{expected}]" in calls(view(request_, function, "pwd"))


def test_choices_take_argument_values_from_results_and_earlier_calls() -> None:
    result = '<tool_response>\n{"order_id": 12446, "status": "Open"}\n</tool_response>'
    history = (PastStep("Buy 3 AAPL at 10.", "[place_order('Buy', 'AAPL', 10, 3)]"),)
    seen = view("Cancel it.", "place_order", "cancel_order", history=history, now=result)
    choices = calls(seen)
    assert choices.index("[cancel_order(12446)]") == 1
    assert "[place_order('Sell', 'AAPL', 10, 3)]" in choices


def test_choices_offer_held_out_functions_only_from_their_turn_on() -> None:
    task = next(t for t in native_tasks(Split.TRAIN, "miss_func") if not t.world.unlisted)  # type: ignore[attr-defined]
    ((turn, names),) = task.world.held_out  # type: ignore[attr-defined]
    offered = {
        seen.info["bfcl.turn"]: any(
            choice.startswith(f"[{name}(") for choice in calls(seen) for name in names
        )
        for seen in views(task)
    }
    assert offered == {number: number >= turn for number in offered}


@pytest.mark.parametrize("task", SOME, ids=lambda task: task.name)
def test_demonstrations_solve_their_tasks_in_the_notation_of_the_choices(task: Task) -> None:
    env = BFCLEnv(split="train", max_steps=1_000)
    env.reset(options={"task": task})
    reached = steps = 0
    for step in BFCL.demonstration(task):
        reached += step in BFCL.choices(env.view)
        steps += 1
        _, reward, *_ = env.step(step)
    assert reward == 1.0
    assert reached > steps // 4


def test_a_demonstration_writes_calls_as_choices_do() -> None:
    message = (
        '<tool_call>\n{"name": "find", "arguments": {"path": ".", "name": "a"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "fund_account", "arguments": {"amount": 5.0}}\n</tool_call>'
    )
    assert [step.partition("</think>")[2] for step in split_calls(message)] == [
        "[find(name='a')]",
        "[fund_account(5)]",
    ]
    assert split_calls(CLOSING) == (CLOSING,)


HOSTILE = (
    "", "'", "''''", "[(", "\0", "\ud800", "a" * 50_000, "'" * 5_000, "1" * 5_000, "A " * 5_000,
    "{" * 5_000, "1e999 NaN -inf", "2026-99-99 Feb 31st, 0000", "‮#@", "﷽" * 100,
    "{[]: 1}", f"{{0x{'f' * 4_000}: 1}}", f"{'9' * 900} + 1j", '{"a":' * 990 + "1" + "}" * 990,
    "é-" * 10_000,
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_choices_are_built_from_any_request_and_result_text(text: str) -> None:
    values_in_text(text)
    values_in_results(f"<tool_response>\n{text}\n</tool_response>")
    values_in_results(f"<tool_response>\n{json.dumps([text, {text: text}])}\n</tool_response>")
    choices = BFCL.choices(view(text, "echo", "mean", "edit_ticket", "post_tweet", "lockDoors"))
    for choice in choices[1:]:
        (call,) = parse_message(choice)
        assert isinstance(call, Call)


HOSTILE_CALLS = (
    "[echo('<tool_response>{[]: 1}</tool_response>')]",
    f"[tail('a', 0x{'f' * 4_000})]",
)


@pytest.mark.parametrize("action", HOSTILE_CALLS, ids=["a list as a key", "a long int"])
def test_choices_and_drafts_survive_hostile_calls(action: str) -> None:
    task = next(t for t in SOME if "GorillaFileSystem" in t.world.classes)  # type: ignore[attr-defined]
    env = BFCLEnv(max_steps=3)
    env.reset(options={"task": task})
    for _ in range(3):
        env.step(action)
        assert len(BFCL.choices(env.view)) > 1
    context = Context(kind="unguided", task=task)
    BFCL.drafts(trajectory_of(env), context, np.random.default_rng(0))


def test_a_file_name_over_the_length_limit_counts_as_text() -> None:
    """Without a bound, a long row of words and hyphens takes quadratic time."""
    assert kind_of(f"{'é-' * 50}.txt") == "file"
    assert kind_of(f"{'é-' * 50}é.txt") == "text"


def test_non_finite_and_huge_numbers_in_results_are_ignored() -> None:
    result = '<tool_response>\n{"result": [1e999, NaN, -Infinity, 7.25]}\n</tool_response>'
    numbers = [value.value for value in values_in_results(result) if value.kind == "number"]
    assert numbers == [7.25, 7, 7.25]
    assert not any(value.kind == "list" for value in values_in_results(result))
    huge = f"<tool_response>\n[{'1' * 4_000}]\n</tool_response>"
    assert not [value for value in values_in_results(huge) if value.kind == "number"]


def test_values_are_found_in_results_in_python_notation() -> None:
    result = "<tool_response>\n{1: ('a', {'b'}), 'c': ['x.txt', 2.0]}\n</tool_response>"
    assert {"x.txt", 2} <= {v.value for v in values_in_results(result) if v.kind != "list"}


def test_a_view_without_tools_offers_only_the_closing_message() -> None:
    seen = dataclasses.replace(view("Hi."), info=FrozenDict({"bfcl.tools": "[]"}))
    assert BFCL.choices(seen) == (CLOSING,)
