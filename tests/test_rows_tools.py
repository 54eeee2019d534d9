"""Tools of rows: functions and classes of a user's that an agent calls in turns."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from coevo_gym import EvolvingTaskSampler, from_rows
from coevo_gym.agents.chat import ChatAgent, ChatConfig
from coevo_gym.core.errors import ConfigError, EnvBackendError
from coevo_gym.core.tool_calls import Call, write_hermes
from coevo_gym.envs.rows.tools import ToolSet
from coevo_gym.prompts import load_prompt
from coevo_gym.runs.config.run_sections import PolicySettings
from coevo_gym.runs.evals.job import make_eval_job
from coevo_gym.runs.policies import make_policy
from coevo_gym.testing.scripted_models import ScriptedPolicy
from tests.agents.fake_openai import FakeOpenAI, Refuse, Say

ROWS = [
    {"id": f"p{n}", "prompt": f"What is the price of {n} apples?", "apples": n, "each": 3}
    for n in range(1, 31)
]


def price(row: dict[str, Any], fruit: str) -> int:
    """Look up what a fruit costs.

    Args:
        fruit: Name of the fruit,
            in the singular.

    Returns:
        The price.
    """
    return int(row["each"]) if fruit == "apple" else 1 // 0


async def multiply(a: int, b: int = 1) -> int:
    """Multiply two numbers.

    Args:
        a: A number.
        b (int): Another number.
    """
    await asyncio.sleep(0)
    return a * b


class Basket:
    """A basket with a state, which lasts for an episode."""

    closed = 0

    def __init__(self, row: dict[str, Any]) -> None:
        self.fruit: list[str] = [f"of row {row['id']}"]

    def put(self, fruit: str) -> list[str]:
        """Put a fruit into the basket."""
        self.fruit.append(fruit)
        return self.fruit

    def broken(self) -> None:
        """Fail."""
        raise EnvBackendError("the basket is gone")

    def slow(self) -> None:
        """Take long."""
        time.sleep(30)

    def close(self) -> None:
        Basket.closed += 1

    def _hidden(self) -> None:
        """Not a tool."""


def check(row: dict[str, Any], answer: str) -> bool:
    return answer.strip() == str(row["apples"] * row["each"])


def call(name: str, **arguments: Any) -> str:
    return write_hermes([Call(name, arguments)])


@pytest.fixture(scope="module")
def shop() -> Any:
    return from_rows(ROWS, check, tools=[price, multiply, Basket], name="shop", timeout_s=2)


def begin(shop: Any) -> tuple[Any, int]:
    env = shop.make()
    task = shop.tasks("train")[0]
    env.reset(options={"task": task})
    return env, task.verifier.row["apples"]


def test_the_schema_comes_from_annotations_and_the_docstring(shop: Any) -> None:
    schemas = {tool["function"]["name"]: tool["function"] for tool in json.loads(shop.tools())}
    assert [*schemas] == ["price", "multiply", "put", "broken", "slow"]
    assert schemas["price"] == {
        "name": "price",
        "description": "Look up what a fruit costs.",
        "parameters": {
            "type": "object",
            "properties": {
                "fruit": {"type": "string", "description": "Name of the fruit, in the singular."}
            },
            "required": ["fruit"],
        },
    }
    numbers = schemas["multiply"]["parameters"]
    assert numbers["required"] == ["a"]
    assert numbers["properties"]["b"] == {
        "default": 1,
        "description": "Another number.",
        "type": "integer",
    }


def test_an_agent_calls_tools_and_then_answers(shop: Any) -> None:
    env, apples = begin(shop)
    observation, reward, terminated, truncated, info = env.step(call("price", fruit="apple"))
    assert observation == "<tool_response>\n3\n</tool_response>"
    assert (reward, terminated, truncated, info["error_kind"]) == (0.0, False, False, "")
    assert env.unwrapped.calls == ("price",)
    both = write_hermes([Call("multiply", {"a": apples, "b": 3}), Call("put", {"fruit": "é"})])
    observation, *_ = env.step(f"I see.\n{both}")
    assert observation.startswith(f"<tool_response>\n{apples * 3}\n</tool_response>\n")
    assert '"é"' in observation
    assert env.step(str(apples * 3))[1:4] == (1.0, True, False)


def test_a_tool_class_gets_one_object_per_episode_that_is_closed_at_its_end(shop: Any) -> None:
    closed = Basket.closed
    for _ in range(2):
        env, _ = begin(shop)
        env.step(call("put", fruit="pear"))
        observation, *_ = env.step(call("put", fruit="plum"))
        assert json.loads(observation.split("\n")[1])[1:] == ["pear", "plum"]
        env.step("done")
    assert Basket.closed == closed + 2


@pytest.mark.parametrize(
    ("action", "kind", "text"),
    [
        (call("price"), "arguments", "price needs the argument 'fruit'"),
        (call("price", fruit=3), "arguments", "Input should be a valid string"),
        (call("price", fruit="apple", row={}), "arguments", "has no parameter 'row'"),
        (call("multiply", a="2"), "arguments", "valid integer"),
        (call("multiply", a=True), "arguments", "valid integer"),
        (call("prise", fruit="apple"), "unknown_tool", "Call one of: price, multiply, put"),
        (call("_hidden"), "unknown_tool", "there is no tool '_hidden'"),
        (call("close"), "unknown_tool", "there is no tool 'close'"),
        (call("price", fruit="pear"), "call", "Error: ZeroDivisionError: integer division"),
        ("<tool_call>price</tool_call>", "parse", "a call cannot be read"),
        ("<tool_call>", "parse", "</tool_call> is missing"),
    ],
)
def test_an_invalid_call_returns_an_error_message_to_the_agent(
    shop: Any, action: str, kind: str, text: str
) -> None:
    env, apples = begin(shop)
    observation, reward, terminated, _, info = env.step(action)
    assert text in observation
    assert (reward, terminated) == (0.0, False)
    assert (info["error_kind"], info["action_valid"]) == (kind, False)
    assert env.step(str(apples * 3))[1] == 1.0, "the episode goes on"


def test_an_infrastructure_fault_in_a_tool_loses_the_episode(shop: Any) -> None:
    for name, message in (("broken", "the basket is gone"), ("slow", "did not return within")):
        env, _ = begin(shop)
        with pytest.raises(EnvBackendError, match=message):
            env.step(call(name))


def row_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "coevo-rows"}


def test_a_failed_reset_closes_the_tools_it_opened() -> None:
    closed: list[str] = []

    class First:
        def look(self) -> None:
            """Look."""

        def close(self) -> None:
            closed.append("first")

    class Absent:
        def __init__(self) -> None:
            raise ConnectionError("no database")

        def ask(self) -> None:
            """Ask."""

    env = from_rows(ROWS, check, tools=[First, Absent]).make()
    before = row_threads()
    for _ in range(3):
        with pytest.raises(EnvBackendError, match="Absent raised ConnectionError: no database"):
            env.reset()
    assert closed == ["first"] * 3
    for thread in row_threads() - before:
        thread.join(timeout=20)
        assert not thread.is_alive()


def test_a_tool_is_closed_even_if_closing_another_fails() -> None:
    closed: list[str] = []

    class One:
        def one(self) -> None:
            """Do nothing."""

        def close(self) -> None:
            closed.append("one")

    class Two:
        def two(self) -> None:
            """Do nothing."""

        def close(self) -> None:
            closed.append("two")
            raise ConnectionError("gone")

    env = from_rows(ROWS, check, tools=[One, Two]).make()
    env.reset()
    with pytest.raises(EnvBackendError, match="close raised ConnectionError: gone"):
        env.close()
    assert closed == ["two", "one"]


def test_calls_are_not_answers_but_count_as_turns() -> None:
    judged: list[str] = []

    def verify(row: dict[str, Any], answer: str) -> bool:
        judged.append(answer)
        return False

    short = from_rows(ROWS, verify, tools=[multiply], max_turns=2)
    env, _ = begin(short)
    env.step(call("multiply", a=1))
    assert env.step(call("multiply", a=1))[2:4] == (False, True)
    assert judged == [""]


def test_the_user_may_reply_to_an_answer() -> None:
    def respond(row: dict[str, Any], messages: list[dict[str, str]]) -> str | None:
        return "Are you sure?" if len(messages) == 2 else None

    talks = from_rows(ROWS, check, respond=respond, tools=[price])
    env, apples = begin(talks)
    env.step(call("price", fruit="apple"))
    assert env.step("Yes.")[0] == "Are you sure?"
    env.step(call("price", fruit="apple"))
    assert env.step(str(apples * 3))[1:3] == (1.0, True)
    assert talks.replay(talks.tasks("train")[0], ["Yes.", str(apples * 3)]).solves


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_is_accepted_as_an_action(text: str) -> None:
    env, _ = begin(from_rows(ROWS, check, tools=[price, multiply], name="any_text"))
    env.step(f"<tool_call>{text}")
    env.close()


def test_tool_results_are_text_or_json_and_are_capped() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "an odd object"

    def give(what: Literal["text", "none", "object", "long", "circle"]) -> Any:
        circle: list[Any] = []
        circle.append(circle)
        everything = {"text": "a\nb", "none": None, "object": [Odd(), 1], "long": "x" * 40_000}
        return everything.get(what, circle)

    given_back = from_rows(ROWS, check, tools=[give])
    env, _ = begin(given_back)
    results = [env.step(call("give", what=w))[0] for w in ("text", "none", "object", "circle")]
    assert [text.removeprefix("<tool_response>\n")[:8] for text in results] == [
        "a\nb\n</to",
        "null\n</t",
        '["an odd',
        "[[...]]\n",
    ]
    assert "32,000 of 40,000 characters" in env.step(call("give", what="long"))[0]


class Address(BaseModel):
    """An address."""

    city: str


def test_arguments_are_converted_to_the_annotated_types() -> None:
    def send(to: Address, copy: tuple[int, ...] = (), schema: str | None = None) -> str:
        return f"{to.city} {copy} {schema}"

    posted = from_rows(ROWS, check, tools=[send])
    env, _ = begin(posted)
    result = env.step(call("send", to={"city": "Ulm"}, copy=[1, 2]))[0]
    assert "Ulm (1, 2) None" in result
    assert "to.city" in env.step(call("send", to={"city": 3}))[0]


def plain(a):  # type: ignore[no-untyped-def]
    return a


def many(*values: int) -> int:
    return sum(values)


def odd(value: Exception) -> None: ...


def twice(row: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([plain], "parameter 'a' of the tool plain has no type. Annotate it, for example a: str"),
        ([many], "of the tool many cannot be passed"),
        ([odd], "parameters of the tool odd have no JSON schema"),
        ([twice, twice], "Two tools are called 'twice'"),
        ([lambda: 1], "must be a function with a name, or a class"),
        ([Basket({"id": 1})], "For an object, pass its methods"),
    ],
)
def test_tools_without_a_valid_schema_are_refused(tools: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_rows(ROWS, check, tools=tools)


def test_tools_are_refused_for_a_users_own_env() -> None:
    with pytest.raises(ConfigError, match="not both"):
        from_rows(ROWS, env=Basket, tools=[price])


def test_a_set_of_tools_can_be_pickled() -> None:
    tools = ToolSet([price, multiply, Basket])
    assert pickle.loads(pickle.dumps(tools)).schemas == tools.schemas


def test_a_sampler_practises_rows_with_tools(shop: Any) -> None:
    env = EvolvingTaskSampler(shop.make(), "sec", group_size=2)
    for _ in range(8):
        env.reset()
        env.step(call("price", fruit="apple"))
        env.step("1")
    assert env.session.metrics()["groups"] >= 3


# Agents.


def test_the_default_prompt_describes_the_tools(shop: Any) -> None:
    env, _ = begin(shop)
    policy = ScriptedPolicy([("price of", call("price", fruit="apple")), ("response", "12")])
    agent = ChatAgent(policy, load_prompt("shop"))
    (act,) = agent.act([env.unwrapped.view])
    env.step(act.text)
    (act,) = agent.act([env.unwrapped.view])
    assert act.text == "12"
    system = policy.asked[0].messages[0].content
    assert "<tool_call>" in system
    assert '"name": "multiply"' in system
    assert not policy.asked[0].tools
    assert [message.role for message in policy.asked[1].messages] == [
        "system",
        "user",
        "assistant",
        "user",
    ]


NATIVE = {
    "hermes": '<tool_call>\n{"name": "multiply", "arguments": {"a": 2, "b": 3}}\n</tool_call>',
    "llama3": '<|python_tag|>{"name": "multiply", "parameters": {"a": 2, "b": 3}}',
    "pythonic": "[multiply(2, b=3)]",
    "qwen3_coder": "<tool_call>\n<function=multiply>\n<parameter=a>\n2\n</parameter>\n"
    "<parameter=b>\n3\n</parameter>\n</function>\n</tool_call>",
}


@pytest.mark.parametrize("style", NATIVE)
def test_a_model_calls_tools_in_its_own_notation(shop: Any, style: Any) -> None:
    env, _ = begin(shop)
    policy = ScriptedPolicy([("price of", NATIVE[style]), ("6", "The price is 6.")])
    agent = ChatAgent(policy, load_prompt("shop"), ChatConfig(style=style))
    (act,) = agent.act([env.unwrapped.view])
    assert act.text == call("multiply", a=2, b=3)
    env.step(act.text)
    (last,) = agent.act([env.unwrapped.view])
    assert last.text == "The price is 6."
    first, second = policy.asked
    assert first.tools == second.tools == shop.tools()
    assert [message.role for message in first.messages] == ["user"], "nothing to say in addition"
    assert [message.role for message in second.messages] == ["user", "assistant", "tool"]
    assert second.messages[-1].content == "6"


def test_a_call_that_cannot_be_parsed_returns_an_error_to_the_model(shop: Any) -> None:
    env, _ = begin(shop)
    policy = ScriptedPolicy([("", '{"name": "multiply", "parameters": {')])
    agent = ChatAgent(policy, load_prompt("shop"), ChatConfig(style="llama3"))
    (act,) = agent.act([env.unwrapped.view])
    observation, *_, info = env.step(act.text)
    assert "is not JSON" in observation
    assert info["error_kind"] == "parse"


def test_chat_styles_that_do_not_suit_the_policy_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"webshop@.* has no tools"):
        ChatAgent(ScriptedPolicy([]), load_prompt("webshop"), ChatConfig(style="hermes"))
    with pytest.raises(ValueError, match="Set history = 'causal' or 'reasoning'"):
        ChatConfig(style="hermes", history="window")
    for kind, style in (("transformers", "openai"), ("openai", "hermes")):
        settings = PolicySettings.model_validate({"kind": kind, "chat": {"style": style}})
        with pytest.raises(ConfigError, match=f"'{style}' does not suit policy.kind = '{kind}'"):
            make_policy(settings, seed=0)


def tool_call(name: str, arguments: str, number: int) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def clerk(messages: tuple[tuple[str, str], ...]) -> Say | Refuse:
    """Answer as a model on a server with native tools would."""
    role, content = messages[-1]
    apples = messages[0][1].split()[-2]
    if role == "user":
        calls = (tool_call("price", '{"fruit": "apple"}', 1), tool_call("multiply", "oops", 2))
        return Say("I look.", "tool_calls", tool_calls=calls)
    if "cannot be read" in content:
        return Say(
            None, "tool_calls", tool_calls=(tool_call("multiply", f'{{"a": {apples}, "b": 3}}', 3),)
        )
    return Say(content)


def test_tools_without_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="--tool only works with rows"):
        make_eval_job("webshop", "random", "val", tools=["mine.py:price"])


def test_coevo_eval_evaluates_an_endpoint_with_native_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from coevo_gym import cli

    monkeypatch.chdir(tmp_path)
    Path("apples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    Path("mine.py").write_text(
        "def check(row, answer):\n"
        "    return answer == str(row['apples'] * row['each'])\n"
        "def price(row, fruit: str):\n"
        "    return row['each']\n"
        "class Sums:\n"
        "    def multiply(self, a: int, b: int):\n"
        "        return a * b\n"
    )
    with FakeOpenAI(answer=clerk) as server:
        options = [
            *("--tool", "mine.py:price", "--tool", "mine.py:Sums", "--policy", "openai:fake"),
            *("--set", f"policy.endpoint.base_url={server.url}"),
            *("--set", "policy.chat.style=openai"),
        ]
        command = ["coevo", "eval", "apples.jsonl", "--verify", "mine.py:check", *options]
        monkeypatch.setattr("sys.argv", command)
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        done = capsys.readouterr()
        assert exit_.value.code == 0, done.out + done.err
        assert not server.problems
        bodies = server.bodies
    assert "100.0%" in done.out
    assert all(len(body["tools"]) == 2 for body in bodies)
    last = bodies[-1]["messages"]
    assert [message["role"] for message in last] == [
        "user", "assistant", "tool", "tool", "assistant", "tool",
    ]  # fmt: skip
    assert last[1]["content"] == "I look."
    assert [one["function"]["arguments"] for one in last[1]["tool_calls"]] == [
        '{"fruit": "apple"}',
        "{}",
    ]
    assert [message["tool_call_id"] for message in last if message["role"] == "tool"] == [
        "call_1",
        "call_2",
        "call_3",
    ]
