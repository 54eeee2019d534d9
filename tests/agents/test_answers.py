from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.thoughts import thought_opening, without_thoughts
from coevo_gym.prompts import AnswerForm
from coevo_gym.prompts.answers import action_of, answer_of

TAGS = ("<think>", "</think>", "<action>", "</action>")
PIECES = st.one_of(st.sampled_from(TAGS), st.sampled_from(["go", "\n", " "]), st.text(max_size=4))
ANSWERS = st.lists(PIECES, max_size=12).map("".join)
PLAIN = st.text().filter(lambda text: "<" not in text)
FORMS: st.SearchStrategy[AnswerForm] = st.sampled_from(["action", "text", "code"])


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("<action>go</action>", "go"),
        ("<think>look?</think>\n<action> go </action> at once", "go"),
        ("<action>look</action> no: <action>go</action>", "go"),
        ("<action>go", "go"),
        ("<action>look</action><action>go", "go"),
        ("<action></action>", ""),
        ("<think><action>look</action></think><action>go</action>", "go"),
        ("<think><action>look</action></think>", ""),
        ("<action>look</action><think>rather go?", "look"),
        ("<think>still thinking about <action>look</action>", ""),
        ("look? <action>look</action></think><action>go</action>", "go"),
        ("I look around.\n\n go \n\n", "go"),
        ("", ""),
        (" \n ", ""),
    ],
)
def test_the_action_is_extracted_from_an_answer(answer: str, action: str) -> None:
    assert action_of(answer, "action") == action


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("<think>which?</think>\nprint(1)\n", "print(1)"),
        ("print('<action>')", "print('<action>')"),
        ("a<think>b</think>c<think>d", "ac"),
        ("<think>a<think>b</think>c</think>d", "d"),
        ("<think>never ends", ""),
    ],
)
def test_in_text_form_the_whole_answer_without_thoughts_is_the_action(
    answer: str, text: str
) -> None:
    assert action_of(answer, "text") == text


@given(ANSWERS, FORMS)
def test_the_action_of_any_text_is_stripped_and_not_longer_than_the_text(
    answer: str, form: AnswerForm
) -> None:
    action = action_of(answer, form)
    assert action == action.strip()
    assert len(action) <= len(answer)


@given(PLAIN, PLAIN, PLAIN, FORMS)
def test_thoughts_never_change_the_action(
    before: str, thought: str, after: str, form: AnswerForm
) -> None:
    bare = action_of(before + after, form)
    assert action_of(f"{before}<think>{thought}</think>{after}", form) == bare
    assert action_of(f"{before}<think>{thought}", form) == action_of(before, form)
    assert action_of(f"{thought}</think>{after}", form) == action_of(after, form)


@given(PLAIN, FORMS)
def test_an_answer_built_from_an_action_is_parsed_back_to_it(action: str, form: AnswerForm) -> None:
    whole = action.strip()
    assert action_of(answer_of(whole, form), form) == whole
    assert without_thoughts(answer_of(whole, form)) == answer_of(whole, form)


@pytest.mark.parametrize(
    ("answer", "form", "action"),
    [
        ("<action>go</action> and then", "action", "go"),
        ("<action>go to shelf 1", "action", ""),
        ("<action>look</action> no: <action>go to", "action", ""),
        ("I will search. <acti", "action", ""),
        ("I would rather click[buy", "action", ""),
        (
            "<think>No.</think>```python\nprint(1)\n```\nThis is",
            "text",
            "```python\nprint(1)\n```\nThis is",
        ),
        (
            "First:\n```python\nprint(1)\n```\nthen\n```python\ndel",
            "text",
            "First:\n```python\nprint(1)\n```\nthen",
        ),
        ("```python\npay(1", "text", ""),
        ("<tool_call>{}</tool_call> and", "text", "<tool_call>{}</tool_call> and"),
        ("go to shelf 1", "text", ""),
        ("go to shelf 1\nBecause I", "text", "go to shelf 1"),
        ("click[buy now] as I have cho", "text", "click[buy now]"),
        ("search[red sho", "text", ""),
        ("apis.phone.delete(1)\napis.phone.send(", "code", ""),
        ("pay(500)\n```python\nrefund(", "code", ""),
        ("```python\nprint(1)\n```\nThis pri", "code", "```python\nprint(1)\n```\nThis pri"),
        ("```python\nprint(1)\n```\n```python\ndel", "code", "```python\nprint(1)\n```"),
    ],
)
def test_a_cut_answer_has_only_complete_actions(answer: str, form: AnswerForm, action: str) -> None:
    assert action_of(answer, form, cut=True) == action


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            "<|channel|>analysis<|message|>Buy?<|end|><|start|>assistant<|channel|>final<|message|>go",
            "go",
        ),
        ("<|channel|>analysis<|message|><action>click[buy now]</action> or", ""),
        ("<|channel|>commentary to=f <|constrain|>json<|message|>{}", ""),
        ("cat: <|channel|>final<|message|>x", "cat: <|channel|>final<|message|>x"),
    ],
)
def test_without_thoughts_leaves_only_the_final_channel(answer: str, expected: str) -> None:
    assert without_thoughts(answer) == expected


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("<|assistant|>\n<think>\n", "<think>\n"),
        ("<|assistant|><think>", "<think>"),
        ("<|assistant|>\n<think>\n\n</think>\n\n", ""),
        ("Think inside <think></think>.<|assistant|>", ""),
        ("", ""),
    ],
)
def test_thought_opening_returns_the_thought_that_a_prompt_leaves_open(
    prompt: str, opened: str
) -> None:
    assert thought_opening(prompt) == opened
