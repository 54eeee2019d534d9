"""The advisor: whatever a model says becomes an answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coevo_gym.agents.advice.advisor import (
    MAX_CHARS,
    Budgeted,
    ModelAdvisor,
    Unreadable,
    read_answer,
)
from coevo_gym.core.errors import BudgetSpent, ConfigError
from coevo_gym.core.inquiry import Answer
from coevo_gym.core.seams import Completion, Finish, Message, Policy, Request
from coevo_gym.core.spend import ANSWERS, NO_USAGE, Caps, Meter, Usage
from coevo_gym.testing.scripted_models import ScriptedPolicy
from tests.agents.advice.kettle import GOOD, Summary, load_prompt, make_inquiry
from tests.hostile import HOSTILE, HostilePolicy

BOILED = Summary(summary="It boiled.", confidence=0.75)
LOST = Completion("The line is dead.", None, Finish.LOST, Usage(calls=1))
OVERFLOW = Completion("", None, Finish.OVERFLOW, Usage(calls=1))
CAPPED = Completion("All is spent.", None, Finish.CAPPED)


class Batches:
    """Notes how large the batches are."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.sizes: list[int] = []

    def generate(self, requests: Sequence[Request]) -> Sequence[Completion]:
        self.sizes.append(len(requests))
        return self.policy.generate(requests)


def advisor(policy: Policy, at_once: int | None = None) -> ModelAdvisor:
    return ModelAdvisor(policy, at_once=at_once, load=load_prompt)


def asked(policy: Policy, *stories: str) -> list[Answer[Summary]]:
    return advisor(policy).ask([make_inquiry(story) for story in stories])


def test_a_batch_of_inquiries_is_a_batch_of_requests() -> None:
    policy = ScriptedPolicy([("steam", GOOD), ("ice", GOOD.replace("boiled", "froze"))])
    batches = Batches(policy)
    steam, ice = asked(batches, "steam", "ice")
    assert (steam.value, steam.problem) == (BOILED, "")
    assert ice.value == Summary(summary="It froze.", confidence=0.75)
    assert batches.sizes == [2]
    first = policy.asked[0]
    assert first.messages == (
        Message("system", "You study kettles. Answer with one JSON object."),
        Message("user", "What happened: steam"),
    )
    assert (first.template, first.purpose) == ("kettle/summary@3", "kettle/summary")
    assert advisor(policy).ask([]) == []


def test_an_answer_that_cannot_be_used_is_asked_for_once_more() -> None:
    policy = ScriptedPolicy([("Unusable", GOOD), ("", "<think>Hm.</think>It boiled.")])
    batches = Batches(policy)
    first, second = asked(batches, "steam", "fog")
    assert first.value == second.value == BOILED
    assert batches.sizes == [2, 2]
    assert policy.asked[2].messages[2:] == (
        Message("assistant", "It boiled."),
        Message("user", "Unusable, since there is no JSON object in it. Tell it again: steam"),
    )


def test_it_counts_answers_that_were_used_repaired_or_of_no_use() -> None:
    policy = ScriptedPolicy(
        [
            ("Tell it again: hail", "No."),
            ("Unusable", GOOD),
            ("steam", GOOD),
            ("fog|hail", "It boiled."),
            ("rain", LOST),
        ]
    )
    counts: list[tuple[str, Usage]] = []
    arguments = {
        "load": load_prompt,
        "count": lambda purpose, usage: counts.append((purpose, usage)),
    }
    questions = [make_inquiry(story) for story in ("steam", "fog", "hail", "rain")]
    answers = ModelAdvisor(policy, **arguments).ask(questions)  # type: ignore[arg-type]
    ends = [Usage(used=1), Usage(repaired=1), Usage(by_rule=1), Usage(by_rule=1)]
    assert counts == [("kettle/summary", end) for end in ends]
    for answer, end in zip(answers, ends, strict=True):
        assert answer.usage.model_dump(include=set(ANSWERS)) == end.model_dump(include=set(ANSWERS))
    broke = Budgeted(policy, Meter(Caps(max_tokens_per_round=1)))
    counts.clear()
    (unsent,) = ModelAdvisor(broke, **arguments).ask([make_inquiry("steam")])  # type: ignore[arg-type]
    assert (unsent.problem, counts) == ("budget", [("kettle/summary", NO_USAGE)])


def test_what_repairing_does_not_mend_keeps_its_first_error() -> None:
    policy = ScriptedPolicy([("Unusable", "No."), ("", '{"summary": "x", "confidence": "high"}')])
    (answer,) = asked(policy, "steam")
    assert answer.value is None
    assert answer.problem == (
        "schema: confidence: Input should be a valid number, unable to parse string as a number"
    )
    assert answer.usage.calls == len(policy.asked) == 2
    assert answer.usage.completion_tokens == 4 + 1


def test_an_answer_that_was_cut_is_told_to_be_shorter() -> None:
    cut = Completion('{"summary": "It', None, Finish.LENGTH, Usage(calls=1))
    policy = ScriptedPolicy([("Unusable.*cut after 32 tokens, so be shorter", GOOD), ("", cut)])
    assert asked(policy, "steam")[0].value == BOILED


def test_a_long_answer_that_cannot_be_used_is_quoted_in_part() -> None:
    policy = ScriptedPolicy([("Unusable", GOOD), ("", "x" * 1_000_000)])
    assert asked(policy, "steam")[0].value == BOILED
    assert len(policy.asked[1].messages[2].content) <= 8000


def test_a_refused_prompt_is_not_an_endpoint_without_answers() -> None:
    refused = Completion("Blocked.", None, Finish.REFUSED, Usage(calls=1))
    policy = ScriptedPolicy([("ice", refused), ("steam", GOOD)])
    *blocked, steam = advisor(policy, at_once=1).ask(
        [make_inquiry(s) for s in ["ice"] * 4 + ["steam"]]
    )
    assert [answer.problem for answer in blocked] == ["refused: Blocked."] * 4
    assert steam.value == BOILED


def test_a_verdict_in_a_cut_thought_is_none() -> None:
    thought = Completion(f"I might say {GOOD} but", None, Finish.LENGTH, Usage(calls=1))
    (answer,) = asked(ScriptedPolicy([("", thought)]), "steam")
    assert answer.value is None
    assert "it was cut after 32 tokens" in answer.problem


def test_what_has_no_room_is_shortened_once() -> None:
    policy = ScriptedPolicy([("long", OVERFLOW), ("short", GOOD)])
    batches = Batches(policy)
    answers = advisor(batches).ask(
        [
            make_inquiry("long", shorter="short"),
            make_inquiry("long", shorter="as long"),
            make_inquiry("long"),
            make_inquiry("short"),
        ]
    )
    assert [answer.problem for answer in answers] == ["", "overflow", "overflow", ""]
    assert batches.sizes == [4, 2]
    assert [answer.usage.calls for answer in answers] == [2, 2, 1, 1]


def test_a_shortened_answer_may_be_repaired_and_a_repair_without_room_is_the_schemas_fault() -> (
    None
):
    policy = ScriptedPolicy(
        [
            ("Unusable.*short$", GOOD),
            ("Unusable", OVERFLOW),
            ("long", OVERFLOW),
            ("", "Nothing."),
        ]
    )
    shortened, full = advisor(policy).ask(
        [make_inquiry("long", shorter="short"), make_inquiry("wide")]
    )
    assert shortened.value == BOILED
    assert full.problem == "schema: there is no JSON object in it"


def test_a_cap_of_the_policys_own_is_no_answer() -> None:
    with pytest.raises(BudgetSpent, match="All is spent"):
        asked(ScriptedPolicy([("steam", CAPPED), ("ice", GOOD)]), "ice", "steam")


def test_a_cap_of_the_policys_own_is_an_end_of_the_budget() -> None:
    meter = Meter()
    budgeted = Budgeted(ScriptedPolicy([("steam", CAPPED), ("ice", GOOD)]), meter)
    steam, ice = asked(budgeted, "steam", "ice")
    assert (steam.problem, ice.value) == ("budget", BOILED)
    assert meter.total.requests == 1


def test_what_is_lost_is_an_answer_too() -> None:
    policy = ScriptedPolicy([("dead", LOST), ("Unusable", LOST), ("odd", "?"), ("", GOOD)])
    dead, fine, odd = asked(policy, "dead", "steam", "odd")
    assert dead == Answer(None, "endpoint: The line is dead.", Usage(calls=1, by_rule=1))
    assert fine.value == BOILED
    assert odd.problem == "endpoint: The line is dead."


def test_after_three_in_a_row_the_rest_of_a_batch_is_not_sent() -> None:
    policy = ScriptedPolicy([("dead", LOST), ("", GOOD)])
    batches = Batches(policy)
    stories = ["dead", "dead", "steam", "dead", "dead", "dead", "steam", "steam"]
    answers = advisor(batches, at_once=2).ask([make_inquiry(story) for story in stories])
    assert batches.sizes == [2, 2, 2]
    assert [answer.value is not None for answer in answers] == [False] * 2 + [True] + [False] * 5
    assert answers[5].problem == "endpoint: The line is dead."
    assert answers[6].problem == (
        "endpoint: not asked, after three requests in a row that were lost"
    )
    assert answers[6].usage == Usage(by_rule=1)


def test_a_spent_budget_is_an_answer_too() -> None:
    policy = ScriptedPolicy([("odd", "?"), ("", GOOD)])
    budgeted = Budgeted(policy, Meter(Caps(max_calls_per_round=2)))
    answers = asked(budgeted, "odd", "steam", "fog")
    assert [answer.problem for answer in answers] == ["budget", "", "budget"]
    assert [answer.usage.calls for answer in answers] == [1, 1, 0]


def test_a_prompt_that_wants_other_inputs_is_the_callers_fault() -> None:
    wrong = make_inquiry()
    policy = ScriptedPolicy([("", GOOD)])
    with pytest.raises(ConfigError, match=r"declares the inputs story, but got plot\."):
        advisor(policy).ask([type(wrong)(wrong.prompt, wrong.schema, {"plot": 1})])
    with pytest.raises(ConfigError, match="not valid JSON"):
        advisor(policy).ask([type(wrong)(wrong.prompt, wrong.schema, {"story": object()})])
    assert not policy.asked


# What an answer may look like


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"<think>{{</think>\n{GOOD}",
        f"Here it is: {GOOD} Fine?",
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```",
        f"Not this: ```json\n{{}}\n``` but ```json\n{GOOD}\n``` it is.",
        f"```json\n{GOOD}",
        f"```json\n{GOOD}\n``` and ```python\nprint()\n```",
        GOOD.replace("{", '{"more": {"a": [1]}, "summary2": null, ', 1),
    ],
)
def test_what_can_be_read(text: str) -> None:
    assert read_answer(text, Summary) == BOILED


def test_a_fence_inside_of_a_string_is_none() -> None:
    text = '{"summary": "It said ```json {} ``` then.", "confidence": 1}'
    assert read_answer(text, Summary).summary == "It said ```json {} ``` then."
    assert read_answer(f"```json\n{text}\n```", Summary).confidence == 1


def test_fields_that_nobody_knows_are_dropped_at_any_depth() -> None:
    text = '{"summary": "a", "confidence": 1, "x": 1, "parts": [{"name": "lid", "y": {"z": 2}}]}'
    read = read_answer(text, Summary)
    assert [part.name for part in read.parts] == ["lid"]


def test_strings_are_cut_and_cleaned() -> None:
    text = '{"summary": "' + "x" * 1_000_000 + '", "confidence": 1, "parts": [{"name": "\\ud800"}]}'
    read = read_answer(text, Summary)
    assert len(read.summary) <= MAX_CHARS
    assert read.parts[0].name == "\ufffd"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no JSON object"),
        ("[1, 2]", "no JSON object"),
        ('{"summary": ', "it is no JSON"),
        ('{"summary": "a", "confidence": NaN}', "NaN is no number of JSON"),
        ('{"summary": "a", "confidence": 1e999}', "a number that is too large"),
        ('{"summary": "a", "confidence": ' + "9" * 5000 + "}", "a number that is too large"),
        ('{"summary": "a", "summary": "b"}', "the key 'summary' twice"),
        ('{"a":' * 65 + "1" + "}" * 65, "nested deeper than 64"),
        ('{"a":' * 200_000, "nested deeper than 64"),
        ('{"summary": "a", "parts": [{"name": "lid"}, {}]}', "confidence: Field required"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, why: str) -> None:
    with pytest.raises(Unreadable, match=why) as caught:
        read_answer(text, Summary)
    assert len(str(caught.value)) < 500


PIECES = [
    "{",
    "}",
    "[",
    "]",
    '"',
    "\\",
    "```",
    "json",
    ":",
    ",",
    "\n",
    "<think>",
    "</think>",
    "NaN",
]


@given(st.lists(st.sampled_from([*PIECES, GOOD, '"summary"', "1", "\ud800", " "])).map("".join))
@example("```" * 1000)
@example("<think>" * 1000 + GOOD)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert isinstance(read_answer(text, Summary), Summary)
    except Unreadable as error:
        str(error).encode()


# Models that answer as badly as they can


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), n=st.integers(0, 6), calls=st.none() | st.integers(1, 12))
def test_a_hostile_model_is_answered_for(seed: int, n: int, calls: int | None) -> None:
    decent = ScriptedPolicy([("", GOOD)])
    budget = Meter(Caps(max_calls_per_round=calls))
    policy = Budgeted(HostilePolicy(seed, decent, share=0.4), budget)
    with budget.scope("round-1") as spent:
        inquiries = [make_inquiry(str(i), shorter="" if i % 2 else None) for i in range(n)]
        asking = ModelAdvisor(policy, at_once=2, load=load_prompt, count=budget.count)
        answers = asking.ask(inquiries)
        usage = spent().get("kettle/summary", NO_USAGE)
    assert len(answers) == n
    for answer in answers:
        assert (answer.value is None) == bool(answer.problem)
        kind = answer.problem.partition(":")[0]
        assert kind in ("", "budget", "overflow", "endpoint", "schema")
        answer.problem.encode()
        assert len(answer.problem) < 600
    assert sum((answer.usage for answer in answers), NO_USAGE) == usage
    assert calls is None or usage.calls <= calls
    assert usage.used + usage.repaired == sum(answer.value is not None for answer in answers)


@pytest.mark.slow
def test_a_hostile_model_is_answered_for_two_thousand_times() -> None:
    answers = advisor(HostilePolicy(2, ScriptedPolicy([("", GOOD)]))).ask([make_inquiry()] * 2000)
    kinds = {answer.problem.partition(":")[0] for answer in answers}
    assert kinds == {"", "overflow", "endpoint", "schema"}


def test_a_hostile_model_says_all_of_its_kinds_and_the_same_by_its_seed() -> None:
    def texts(seed: int) -> list[str]:
        requests = [request for _ in range(3) for request in prompts]
        return [completion.text for completion in HostilePolicy(seed).generate(requests)]

    scripted = ScriptedPolicy([("", GOOD)])
    asked(scripted, *map(str, range(40)))
    prompts = scripted.asked
    assert texts(1) == texts(1) != texts(2)
    assert len(set(texts(1))) > len(HOSTILE)
    with pytest.raises(ConfigError, match="no rule for the message 'What happened: 0'"):
        ScriptedPolicy([("never", "x")]).generate(prompts[:1])
