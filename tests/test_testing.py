"""The helpers that other people's tests use."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import coevo_gym
from coevo_gym.agents.chat.format import ChatFormat
from coevo_gym.core.seams import Message
from coevo_gym.envs.base import TaskEnv
from coevo_gym.testing import make_env, replay
from coevo_gym.testing.scripted_models import tiny_chat_model

pytest_plugins = ["pytester"]


def test_replay_plays_the_reference_by_default() -> None:
    task = coevo_gym.tasks("toy", "test")[0]
    assert replay(task).success
    assert replay(task, ("press red", "done")).score < 1.0


def test_the_coevo_env_fixture_makes_envs(coevo_env: Callable[..., TaskEnv]) -> None:
    env = coevo_env("webshop", coevo_gym.tasks("webshop", "val")[0].name, max_steps=2)
    assert env.step("")[3] is False
    assert env.step("")[3] is True


def test_a_seed_picks_the_task(coevo_env: Callable[..., TaskEnv]) -> None:
    names = [coevo_env("toy", seed=seed).task.name for seed in (0, 0, 1, 2, 3)]
    assert names[0] == names[1] == coevo_env("toy").task.name
    assert len(set(names)) > 1


def test_other_projects_can_use_the_pytest_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_buying_nothing_scores_nothing(coevo_env):
            assert coevo_env("webshop").step("")[1] == 0.0
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_the_error_for_an_unknown_benchmark_lists_the_registered_ones() -> None:
    with pytest.raises(coevo_gym.CoevoError, match=r"Unknown benchmark 'atari'\. Registered"):
        make_env("atari")


@pytest.mark.slow
def test_a_tiny_model_chats_with_tools_and_knows_the_numbers_of_its_texts() -> None:
    pytest.importorskip("transformers")
    model, tokenizer = tiny_chat_model(texts=["17", "25"], width=32, layers=1)
    assert sum(weight.numel() for weight in model.parameters()) < 100_000
    assert len(tokenizer("17", add_special_tokens=False)["input_ids"]) == 1
    chat = ChatFormat(tokenizer)
    parameters = {"type": "object", "properties": {"a": {}, "b": {}}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": parameters}}]
    asked = [Message("system", "Be brief."), Message("user", "17 + 25?")]
    ids = chat.prompt_ids(asked, json.dumps(tools))
    assert tokenizer.decode(ids) == (
        "<|im_start|>system\nBe brief.\nadd(a, b)\n<|im_end|>\n"
        "<|im_start|>user\n17 + 25?<|im_end|>\n<|im_start|>assistant\n"
    )
    call = chat.answer_ids(
        '<tool_call>\n{"name": "add", "arguments": {"a": 17, "b": 25}}\n</tool_call>'
    )
    after = [*asked, Message("assistant", "", call), Message("tool", "42")]
    rest = tokenizer.decode(chat.prompt_ids(after, json.dumps(tools))[len(ids) + len(call) :])
    assert rest == "\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n"
    trl = pytest.importorskip("trl.chat_template_utils")
    assert trl.supports_tool_calling(tokenizer)
    assert trl.is_chat_template_prefix_preserving(tokenizer)
