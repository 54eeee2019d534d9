"""The chat wrapper: assistant messages in, tool messages out."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest

from coevo_gym.core.task import Task
from coevo_gym.core.tool_calls import Call
from coevo_gym.envs.bfcl.engine.official_calls import parse_message
from coevo_gym.envs.bfcl.openai_wrapper import OpenAIToolCalls


def chat(**kwargs: Any) -> OpenAIToolCalls:
    return OpenAIToolCalls(gym.make("CoEvolve-BFCL-v0", **kwargs))


def call_of(name: str, arguments: str, id: str = "call_0") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(*calls: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def as_assistant(message: str) -> dict[str, Any]:
    """A reference message as an assistant's."""
    calls = parse_message(message)
    return assistant(
        *(
            call_of(call.name, json.dumps(call.arguments), f"call_{number}")
            for number, call in enumerate(calls)
            if isinstance(call, Call)
        ),
        content=None if calls else message,
    )


def reference_chat(task: Task, env: OpenAIToolCalls) -> dict[str, Any]:
    _, info = env.reset(options={"task": task})
    for message in task.solution:
        _, _, _, _, info = env.step(as_assistant(message))
    return info


@pytest.mark.parametrize("subset", ["base", "miss_func"])
def test_references_succeed_as_assistant_messages(subset: str) -> None:
    env = chat(subset=subset)
    for task in env.unwrapped.tasks[::15]:
        assert reference_chat(task, env)["success"]
        roles = [message["role"] for message in env.messages]
        assert roles.count("user") == len(task.world.turns)
        asked = [c["id"] for m in env.messages for c in m.get("tool_calls", ())]
        answered = [m["tool_call_id"] for m in env.messages if m["role"] == "tool"]
        assert asked == answered


def test_held_out_functions_are_added_to_the_tools_in_their_turn() -> None:
    env = chat(subset="miss_func")
    task = env.unwrapped.tasks[0]
    env.reset(options={"task": task})
    before = {tool["function"]["name"] for tool in env.tools}
    ((turn, names),) = task.world.held_out
    for _ in range(turn):
        env.step(assistant(content="I cannot do that."))
    assert {tool["function"]["name"] for tool in env.tools} - before == set(names)


def test_unreadable_arguments_end_the_turn_and_every_call_is_answered() -> None:
    env = chat(subset="base")
    env.reset(seed=1)
    env.step(assistant(call_of("cd", "{oops", "a"), call_of("ls", "{}", "b")))
    assert [m["role"] for m in env.messages] == ["user", "assistant", "tool", "tool", "user"]
    assert [m["tool_call_id"] for m in env.messages[2:4]] == ["a", "b"]


@pytest.mark.parametrize("arguments", [None, "", " ", "null", {}, "{}"])
def test_a_call_without_arguments_is_accepted_in_every_spelling(arguments: Any) -> None:
    env = chat(subset="base")
    env.reset(options={"task_id": "bfcl/multi_turn_base_2"})
    env.step(assistant(call_of("pwd", arguments)))
    assert "current_working_directory" in env.messages[-1]["content"]


def test_unreadable_arguments_are_answered_in_training_mode() -> None:
    env = chat(mode="train")
    env.reset(seed=1)
    env.step(assistant(call_of("cd", "{oops")))
    assert [m["role"] for m in env.messages] == ["user", "assistant", "tool"]
    assert "not JSON" in env.messages[-1]["content"]


@pytest.mark.parametrize("mode", ["official", "train"])
def test_calls_beyond_the_length_of_a_message_are_answered_with_an_error(mode: str) -> None:
    env = chat(mode=mode)
    env.reset(options={"task_id": "bfcl/multi_turn_base_10"})
    long = json.dumps({"content": "line\n" * 4_500})
    names = [("pwd", "{}"), ("echo", long), ("ls", "{}")]
    env.step(assistant(*(call_of(name, arguments, name) for name, arguments in names)))
    answers = {m["tool_call_id"]: m["content"] for m in env.messages if m["role"] == "tool"}
    assert list(answers) == ["pwd", "echo", "ls"]
    assert "current_working_directory" in answers["pwd"]
    assert all("Error" in answers[name] for name in ("echo", "ls"))
    assert answers["ls"] == "Error: this call could not be read."


@pytest.mark.parametrize("arguments", ['{"content": "</think>"}', {"content": "</think>"}])
def test_each_call_has_its_own_answer(arguments: Any) -> None:
    env = chat()
    env.reset(options={"task_id": "bfcl/multi_turn_base_10"})
    env.step(assistant(call_of("pwd", "{}"), call_of("echo", arguments), call_of("fly", "{}")))
    answers = [m["content"] for m in env.messages if m["role"] == "tool"]
    assert "current_working_directory" in answers[0]
    assert answers[1] == '{"terminal_output": "</think>"}'
    assert "there is no function 'fly'" in answers[2]


def test_message_content_may_be_a_list_of_parts() -> None:
    env = chat()
    env.reset(seed=1)
    parts = [{"type": "text", "text": "It is "}, {"type": "text", "text": "done."}]
    *_, info = env.step({"role": "assistant", "content": parts})
    assert env.messages[1] == {"role": "assistant", "content": "It is done."}
    assert (info["bfcl.turn"], info["action_valid"]) == (1, True)


def test_a_client_message_object_is_an_action_and_a_string_is_refused() -> None:
    env = chat()
    env.reset(seed=1)
    message = SimpleNamespace(model_dump=lambda exclude_none: assistant(call_of("x", "")))
    observation, *_ = env.step(message)
    assert "there is no function 'x'" in observation
    with pytest.raises(TypeError, match="assistant message"):
        env.step("ls")


def test_samples_of_the_action_space_are_valid_actions() -> None:
    env = chat(mode="train")
    env.reset(seed=1)
    env.action_space.seed(0)
    for _ in range(5):
        env.step(env.action_space.sample())
