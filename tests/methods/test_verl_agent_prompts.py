"""The recipe's prompts: their parts, their order, their quoting, their cuts and fallbacks.

The parser below follows the description of the form, not the wording of the prompt files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from coevo_gym.agents.chat import ChatAgent, ChatConfig
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import Completion, Message, Prompt
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.trajectory import Cue, PastStep, View
from coevo_gym.prompts import PromptTemplate, load_prompt, parse_prompt
from tests.methods.verl_agent_states import views

HISTORY = 2
SNAPSHOTS = Path(__file__).with_name("verl_agent_prompts.txt")
"""Ten prompts that were read; read them again if a prompt file changes."""
SEPARATOR = " [SEP] "
_ENTRY = re.compile(
    r"\[Observation (?P<number>\d+): '(?P<observation>.*?)', "
    r"Action (?P=number): '(?P<action>.*?)'\]"
    r"(?=\n(?:\[Observation |\n|$)|$)",
    re.DOTALL,
)


class Parts(NamedTuple):
    """The parts of a prompt. The first form has no task (ALFWorld), counts or entries."""

    numbers: list[int]  # steps taken, steps shown and the current step, in the order of the text
    entries: list[tuple[int, str, str]]
    actions: list[str]


def parse(text: str, *, task: str, observation: str, shop: bool) -> Parts:
    """Read a prompt from its end: request, actions, observation, and what comes before it."""
    body, request = text.rstrip().rsplit("\n\n", 1)
    tags = [request.index(tag) for tag in ("<think>", "</think>", "<action>", "</action>")]
    assert tags == sorted(tags)
    assert "<think>" not in body
    opens = body.rindex("[\n'" if shop else "['")
    assert body.endswith("]")
    commands = body[opens + 1 : -1]
    if shop:  # in quotes with a comma, one a line
        lines = commands.strip("\n").split("\n")
        assert all(line.startswith("'") and line.endswith("',") for line in lines)
        actions = [line[1:-2] for line in lines]
    else:  # in quotes, joined by a newline and a blank
        assert commands.startswith("'")
        assert commands.endswith("'")
        actions = commands[1:-1].split("'\n '")
    head = body[:opens]
    place = head.rindex(observation)
    before, after = head[:place], head[place + len(observation) :]
    assert after.strip().rstrip(":").replace(" ", "").isalpha()  # the line above the actions
    entries = [
        (int(match["number"]), match["observation"], match["action"])
        for match in _ENTRY.finditer(before)
    ]
    if not entries:
        assert not re.search(r"\d", before.replace(task, "", 1))
        return Parts([], [], actions)
    begin = before.index("[Observation ")
    end = before.rindex("']") + 2
    wanted = "\n".join(f"[Observation {n}: '{o}', Action {n}: '{a}']" for n, o, a in entries)
    assert before[begin:end] == wanted  # joined by newlines, with nothing between them
    above, below = before[:begin], before[end:]
    assert above.index(task) > above.index(" ")  # after the role
    counts = [int(n) for n in re.findall(r"\d+", above[above.index(task) + len(task) :])]
    current = [int(n) for n in re.findall(r"\d+", below)]
    return Parts(counts + current, entries, actions)


def task_of(name: str, opening: str) -> str:
    if name == "alfworld":
        return opening.split("Your task is to: ")[1].strip()
    return opening.split(SEPARATOR)[2]


def page_of(text: str, task: str) -> str:
    """The parts of a page after the task, each in quotes; the raw page if it has no task."""
    parts = text.split(SEPARATOR)
    if task not in parts:
        return text
    return SEPARATOR.join(f"'{part}'" for part in parts[parts.index(task) + 1 :])


def actions_of(name: str, view: View) -> list[str]:
    commands = [a for a in view.info["admissible"] if a != "help"]
    if name == "webshop" and view.info["webshop.page"] == "search":
        return ["search[<your query>]", *commands]
    return commands


class Recorder:
    """A policy that records requests and gives the same answer to each."""

    def __init__(self, answer: str = "") -> None:
        self.answer = answer
        self.requests: list[Prompt] = []

    def generate(self, requests: Sequence[Any]) -> list[Completion]:
        self.requests += requests
        return [Completion(self.answer, None) for _ in requests]


def agent(name: str, answer: str = "", **chat: Any) -> ChatAgent:
    settings = {"history": "prompt", "window_turns": HISTORY} | chat
    return ChatAgent(Recorder(answer), load_prompt(f"verl_agent/{name}"), ChatConfig(**settings))


def prompt_text(name: str, view: View, **chat: Any) -> str:
    """The only message that a model gets in a state."""
    (message,) = agent(name, **chat).messages(view)
    assert message.role == "user"
    return message.content


STATES = list(views())


@pytest.mark.parametrize("place", range(len(STATES)))
def test_a_prompt_has_the_parts_of_the_form_in_their_order(place: int) -> None:
    name, view = STATES[place]
    shop, history = name == "webshop", view.history
    opening = history[0].observation if history else view.observation
    task = task_of(name, opening)

    def format_text(text: str) -> str:
        return page_of(text, task) if shop else text

    parts = parse(
        prompt_text(name, view), task=task, observation=format_text(view.observation), shop=shop
    )
    assert parts.actions == actions_of(name, view)
    n_taken = len(history)
    numbers = range(max(0, n_taken - HISTORY) + 1, n_taken + 1)
    expected = [
        (n, format_text(history[n - 1].observation), history[n - 1].action) for n in numbers
    ]
    assert parts.entries == expected
    assert parts.numbers == ([n_taken, len(expected), n_taken + 1] if history else [])


def test_after_three_steps_two_are_format_text() -> None:
    name, view = next((n, v) for n, v in STATES if len(v.history) == 3 and n == "alfworld")
    task, text = task_of(name, view.history[0].observation), prompt_text(name, view)
    parts = parse(text, task=task, observation=view.observation, shop=False)
    assert parts.numbers == [3, 2, 4]
    assert [number for number, *_ in parts.entries] == [2, 3]


def test_without_history_every_step_has_the_first_form() -> None:
    for name, view in STATES:
        text = prompt_text(name, view, window_turns=0)
        assert "[Observation" not in text
        assert text == load_prompt(f"verl_agent/{name}").first_text(view)


def test_help_is_not_listed() -> None:
    _, view = STATES[0]
    assert "help" in view.info["admissible"]
    assert "'help'" not in prompt_text("alfworld", view)


class TestShop:
    def far(self, characters: int) -> View:
        """A state after one step, whose prompt has about this many characters."""
        task = f"WebShop{SEPARATOR}Instruction:{SEPARATOR}a mug{SEPARATOR}Search"
        info = FrozenDict({"admissible": ("click[back to search]",), "webshop.page": "results"})
        past = PastStep(task + SEPARATOR + "x" * characters, "search[mug]")
        page = f"Instruction:{SEPARATOR}a mug{SEPARATOR}Back to Search"
        return View("a mug", page, info, (past,))

    def test_a_long_prompt_falls_back_to_the_first_form(self) -> None:
        room = 13_000 - len(prompt_text("webshop", self.far(0)))
        exact, too_long = (prompt_text("webshop", self.far(n)) for n in (room, room + 1))
        assert len(exact) == 13_000
        assert "[Observation 1:" in exact
        assert "[Observation" not in too_long
        assert "a mug" in too_long  # the first form has the task, too

    def test_a_page_without_the_task_is_shown_as_it_is(self) -> None:
        view = replace(self.far(0), observation="Thank you for shopping with us!")
        assert "shows:\nThank you for shopping with us!\n" in prompt_text("webshop", view)


class TestAgent:
    def test_one_message_is_all_that_a_model_gets(self) -> None:
        one = agent("alfworld", "<think>x</think><action>Look</action>")
        acts = one.act([view for _, view in STATES[:5]])
        assert [act.text for act in acts] == ["look"] * 5
        assert [len(request.messages) for request in one.policy.requests] == [1] * 5  # type: ignore[attr-defined]

    @pytest.mark.parametrize(("name", "action"), [("alfworld", "x" * 30), ("webshop", "x" * 20)])
    def test_an_answer_without_tags_ends_with_its_action(self, name: str, action: str) -> None:
        view = next(view for other, view in STATES if other == name)
        (act,) = agent(name, "X" * 50).act([view])
        assert (act.text, act.said) == (action, "X" * 50)

    def test_a_demonstration_is_a_valid_answer(self) -> None:
        from coevo_gym.methods.verl_agent.answers import is_valid
        from coevo_gym.prompts.answers import action_of, answer_of

        for form in ("verl_agent_alfworld", "verl_agent_webshop"):
            answer = answer_of("go to desk 1", form)
            assert is_valid(answer)
            assert action_of(answer, form) == "go to desk 1"

    def test_all_steps_are_shown_that_fit_if_their_number_is_open(self) -> None:
        name, view = next((n, v) for n, v in STATES if len(v.history) == 9 and n == "alfworld")
        assert prompt_text(name, view, window_turns=None).count("[Observation ") == 9
        long = tuple(step._replace(action="x" * 11_000) for step in view.history)
        text = prompt_text(name, replace(view, history=long), window_turns=None)
        assert text.count("[Observation ") == 2

    def test_cues_are_added_to_the_message(self) -> None:
        _, view = STATES[3]
        before, after = Cue("Mind the cat.", "first"), Cue("Be quick.", "turn")
        text = prompt_text("alfworld", replace(view, cues=(before, after)))
        assert text == "\n\n".join(["Mind the cat.", prompt_text("alfworld", view), "Be quick."])

    @pytest.mark.parametrize("kind", ["causal", "reasoning", "window", "recent", "self_managed"])
    def test_other_histories_are_refused(self, kind: Any) -> None:
        with pytest.raises(ConfigError, match=r"shows past steps itself\. Set policy.chat.history"):
            agent("alfworld", history=kind)

    def test_other_prompts_are_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"alfworld@\d+ does not show past steps"):
            ChatAgent(Recorder(), load_prompt("alfworld"), ChatConfig(history="prompt"))

    def test_the_prompt_is_no_turn_of_a_chat(self) -> None:
        prompt = load_prompt("verl_agent/alfworld")
        with pytest.raises(ConfigError, match=r"in a single message, so it cannot be a turn"):
            prompt.turn_text(STATES[3][1])

    def test_unknown_answer_forms_are_refused(self) -> None:
        text = load_prompt("verl_agent/alfworld").text
        with pytest.raises(ConfigError, match=r"no answer form 'verl_agent_home'.*Did you mean"):
            parse_prompt(text.replace("verl_agent_alfworld", "verl_agent_home"))


def test_ten_prompts_are_as_they_were_read() -> None:
    places = [0, 1, 4, 13, 49, 50, 51, 54, 63, 99]
    texts = [f"### {place}\n{prompt_text(*STATES[place])}\n" for place in places]
    assert SNAPSHOTS.read_text(encoding="utf-8") == "\n".join(texts)
    assert isinstance(load_prompt("verl_agent/webshop"), PromptTemplate)
    assert agent("alfworld").messages(STATES[0][1]) == (Message("user", prompt_text(*STATES[0])),)
