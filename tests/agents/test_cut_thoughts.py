"""A thought that the token limit cuts off is not carried out, whoever opened it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.agents.chat.agent import ChatAgent, ChatConfig
from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.agents.lm.transformers_policy import TransformersPolicy
from coevo_gym.core.seams import Completion, Finish, Message, Prompt, Request, Sampling
from coevo_gym.core.trajectory import TokenDecision, View
from coevo_gym.envs.appworld.env import code_of
from coevo_gym.envs.bfcl.engine.official_calls import parse_message
from coevo_gym.prompts import load_prompt
from coevo_gym.testing.scripted_models import tiny_chat_model
from tests.agents.test_chat_format import CHANNELS, OPENS, OPENS_ALL, OPENS_LAST

INFO = {"bfcl.tools": "[]", "admissible": (), "webshop.reason": "", "alfworld.task_type": ""}
VIEW = View("Do it.", "A page.", INFO)
THOUGHTS = {
    "webshop": "One way is <action>click[buy now]</action> but first I should check the",
    "alfworld": "First option: <action>go to fridge 1</action>. Hmm, but the mug may be",
    "bfcl": 'Perhaps <tool_call>\n{"name": "rm", "arguments": {}}\n</tool_call> would do, but',
    "appworld": "A bad idea would be\n```python\napis.venmo.pay(500)\n```\nbut I must not",
}
DECISION = TokenDecision((1,), (2,), (0.0,))


class Says:
    """A policy that gives one completion to everything."""

    def __init__(self, *completion: Any) -> None:
        self.completion = Completion(*completion)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self.completion] * len(requests)


def action(benchmark: str, *completion: Any, **settings: Any) -> str:
    agent = ChatAgent(Says(*completion), load_prompt(benchmark), ChatConfig(**settings))
    (act,) = agent.act([VIEW])
    return act.text


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("benchmark", THOUGHTS)
def test_a_cut_thought_gives_an_empty_action(benchmark: str, thinking: bool) -> None:
    thought = THOUGHTS[benchmark]
    # An endpoint does not tell whether its template has opened a thought.
    assert action(benchmark, thought, None, Finish.LENGTH, thinking=thinking) == ""
    # A model in this process does, and some models open it themselves.
    assert action(benchmark, f"<think>\n{thought}", DECISION, Finish.LENGTH) == ""
    channel = f"<|channel|>analysis<|message|>{thought}"
    assert action(benchmark, channel, DECISION, Finish.LENGTH) == ""


@pytest.mark.parametrize("benchmark", THOUGHTS)
def test_an_answer_after_a_finished_thought_gives_an_action(benchmark: str) -> None:
    answer = THOUGHTS[benchmark]
    for whole in (f"Hm.</think>{answer}", f"<think>Hm.</think>{answer}"):
        assert action(benchmark, whole, None, Finish.STOP)
        assert action(benchmark, whole, None, Finish.LENGTH)
    assert action(benchmark, answer, DECISION, Finish.LENGTH)


def test_a_cut_thought_or_code_block_executes_nothing() -> None:
    assert parse_message(action("bfcl", THOUGHTS["bfcl"], None, Finish.LENGTH)) == ()
    half = "apis.venmo.pay(500)\napis.venmo.ref"
    for text in (half, f"```python\n{half}"):
        assert code_of(action("appworld", text, DECISION, Finish.LENGTH)) == ""
    assert code_of(action("appworld", half, DECISION, Finish.STOP)) == half


@pytest.mark.parametrize(("answer", "done"), [("go to shelf 1", ""), ("look\nI wi", "look")])
def test_a_cut_command_is_ignored_unless_its_line_is_complete(answer: str, done: str) -> None:
    assert action("alfworld_short", answer, DECISION, Finish.LENGTH) == done
    assert action("alfworld_short", answer, DECISION, Finish.STOP) == answer


@pytest.fixture(scope="module", params=[OPENS, OPENS_LAST, OPENS_ALL, CHANNELS])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    model, tokenizer = tiny_chat_model(request.param)
    if request.param is CHANNELS:
        special = ["<|start|>", "<|end|>", "<|turn|>", "<|channel|>", "<|message|>"]
        tokenizer.add_special_tokens({"additional_special_tokens": special})
        model.resize_token_embeddings(len(tokenizer))
    folder: Path = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return TransformersPolicy(ModelConfig(path=str(folder), device="cpu"), seed=0)


def test_a_completion_begins_with_the_thought_that_the_prompt_opens(policy: Any) -> None:
    (completion,) = policy.generate([Prompt((Message("user", "Hello?"),), Sampling(1.0, 4))])
    assert completion.finish is Finish.LENGTH
    end = policy.tokenizer.decode(list(completion.decision.prompt_ids))
    assert end.endswith(policy.format.opened)
    assert completion.text == policy.format.opened + policy.format.decode(completion.decision.ids)
    assert bool(policy.format.opened) == (policy.tokenizer.chat_template != CHANNELS)


def test_earlier_answers_and_demonstrations_are_outside_of_thoughts(policy: Any) -> None:
    asked = [Message("user", "Go."), Message("assistant", "<action>look</action>")]
    own = policy.tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content, _ in [*asked, asked[0]]],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert list(policy.format.prompt_ids([*asked, asked[0]])) == own
    demonstration = policy.encode_demonstration(asked[:1], asked[1].content)
    text = policy.tokenizer.decode(list(demonstration.prompt_ids + demonstration.ids))
    before = text.partition("<action>")[0]
    assert before.count("<think>") == before.count("</think>")
    assert before.endswith(("</think>\n\n", "final<|message|>"))
