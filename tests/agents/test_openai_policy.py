"""The endpoint policy against a real HTTP server on this machine."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from coevo_gym.agents.endpoint.endpoint import (
    RefusalBody,
    is_overflow,
    max_token_counts,
    retry_after_s,
)
from coevo_gym.agents.endpoint.loop_thread import LoopThread
from coevo_gym.agents.endpoint.openai_policy import EndpointConfig, OpenAIPolicy
from coevo_gym.core.errors import BudgetSpent, ConfigError, ModelError, RateLimited
from coevo_gym.core.seams import Choice, Completion, Finish, Message, Prompt, Sampling
from coevo_gym.core.spend import NO_USAGE, Caps, Meter, Usage
from coevo_gym.core.trajectory import TokenDecision, View
from tests.agents.fake_openai import (
    PATIENCE_S,
    Behaviour,
    Drop,
    FakeOpenAI,
    Flood,
    Hold,
    Raw,
    Refuse,
    Say,
)

KEY = "sk-secret-4711"
OVERFLOW = "This model's maximum context length is 64 tokens. However, you requested 99 tokens."


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OPENAI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(key=KEY) as fake:
        yield fake
    assert not fake.problems


def policy_for(fake: FakeOpenAI, **settings: Any) -> OpenAIPolicy:
    defaults = {"model": "fake", "base_url": fake.url, "backoff_base_s": 1e-4, "timeout_s": 30.0}
    return OpenAIPolicy(EndpointConfig(**(defaults | settings)))


def prompt(*messages: str | tuple[str, str], max_tokens: int = 16) -> Prompt:
    """A prompt of user messages, or of (role, content)."""
    pairs = [("user", each) if isinstance(each, str) else each for each in messages]
    return Prompt(tuple(Message(*each) for each in pairs), Sampling(0.5, max_tokens))


def ask(policy: OpenAIPolicy, *texts: str) -> list[Completion]:
    """The answers, without what they cost."""
    answers = policy.generate([prompt(text) for text in texts])
    return [answer._replace(usage=NO_USAGE, seconds=None) for answer in answers]


def failure(fake: FakeOpenAI, behaviours: Sequence[Behaviour], **settings: Any) -> ModelError:
    """The error after these behaviours, all of which must happen."""
    fake.expect("Hello?", *behaviours)
    with policy_for(fake, **settings) as policy, pytest.raises(ModelError) as caught:
        ask(policy, "Hello?")
    assert len(fake.bodies) == len(behaviours)
    return caught.value


# What is asked and what is answered


def test_a_request_contains_model_messages_temperature_and_token_limit(server: FakeOpenAI) -> None:
    server.expect([("system", "Be brief."), ("user", "Hello?")], Say("Hello."))
    with policy_for(server) as policy:
        answers = policy.generate([prompt(("system", "Be brief."), "Hello?", max_tokens=7)])
    (answer,) = answers
    assert answer.seconds is not None
    assert answer._replace(usage=NO_USAGE, seconds=None) == Completion("Hello.", None, Finish.STOP)
    assert server.bodies == [
        {
            "model": "fake",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hello?"},
            ],
            "temperature": 0.5,
            "max_tokens": 7,
        }
    ]


def test_max_tokens_field_sets_the_name_of_the_token_limit(server: FakeOpenAI) -> None:
    server.expect("Hello?", Say("Hello."))
    with policy_for(server, max_tokens_field="max_completion_tokens") as policy:
        ask(policy, "Hello?")
    assert server.bodies[0]["max_completion_tokens"] == 16
    assert "max_tokens" not in server.bodies[0]


def test_a_rejected_temperature_raises_with_advice_and_can_be_omitted() -> None:
    with FakeOpenAI(own_temperature=True) as server:
        server.expect("Hello?", Say("Hello."))
        with policy_for(server) as policy, pytest.raises(ModelError) as caught:
            ask(policy, "Hello?")
        assert "Only the default (1) value is supported. Set send_temperature to false" in str(
            caught.value
        )
        with policy_for(server, send_temperature=False) as policy:
            assert ask(policy, "Hello?") == [Completion("Hello.", None, Finish.STOP)]
        assert "temperature" not in server.bodies[-1]


def test_a_chat_sends_earlier_answers_as_text(server: FakeOpenAI) -> None:
    server.expect("Left or right?", Say("Left."))
    server.expect(
        [("user", "Left or right?"), ("assistant", "Left."), ("user", "A wall.")], Say("Right.")
    )
    with policy_for(server) as policy:
        (first,) = ask(policy, "Left or right?")
        answer = Message("assistant", first.text, ids=(1, 2))
        chat = (Message("user", "Left or right?"), answer, Message("user", "A wall."))
        (second,) = policy.generate([Prompt(chat)])
    assert second.text == "Right."
    assert server.connections == 1


def test_answers_come_in_the_order_of_the_requests(server: FakeOpenAI) -> None:
    texts = [f"Number {i}?" for i in range(8)]
    hold = Hold(Say("0"))
    server.expect(texts[0], hold)
    for i, text in enumerate(texts[1:], 1):
        server.expect(text, Say(str(i)))
    with ThreadPoolExecutor() as pool, policy_for(server) as policy:
        answers = pool.submit(ask, policy, *texts)
        server.wait_until(lambda fake: fake.answered == 7)
        hold.until.set()
        assert [answer.text for answer in answers.result()] == [str(i) for i in range(8)]


def test_max_concurrency_limits_the_requests_of_all_calls_together(server: FakeOpenAI) -> None:
    gate = threading.Event()
    texts = [f"Number {i}?" for i in range(12)]
    for text in texts:
        server.expect(text, Hold(Say(text), gate))
    with ThreadPoolExecutor() as pool, policy_for(server, max_concurrency=3) as policy:
        calls = [pool.submit(ask, policy, *texts[:6]), pool.submit(ask, policy, *texts[6:])]
        server.wait_until(lambda fake: fake.in_flight == 3)
        gate.set()
        assert [answer.text for call in calls for answer in call.result()] == texts
    assert server.most_in_flight == 3


@pytest.mark.parametrize(
    ("say", "completion", "empty"),
    [
        (Say("Cut", "length"), Completion("Cut", None, Finish.LENGTH), 0),
        (Say(None, "length", reasoning="Hm"), Completion("", None, Finish.LENGTH), 1),
        (Say("Bad", "content_filter"), Completion("", None, Finish.STOP), 1),
        (Say(""), Completion("", None, Finish.STOP), 1),
        (Say("Left", reasoning="Hm"), Completion("Left", None, Finish.STOP), 0),
        (Say(None, "tool_calls", tool_calls=({"id": "1"},)), Completion("", None), 1),
        (Say("Ok", "eos"), Completion("Ok", None, Finish.STOP), 0),
        (Say("a\ud800b"), Completion("a\ufffdb", None, Finish.STOP), 0),
    ],
)
def test_empty_cut_and_filtered_answers_are_completions_not_errors(
    server: FakeOpenAI, say: Say, completion: Completion, empty: int
) -> None:
    server.expect("Hello?", say)
    with policy_for(server) as policy:
        assert ask(policy, "Hello?") == [completion]
        assert policy.usage == Usage(calls=1, prompt_tokens=10, completion_tokens=5)
        assert policy.counts == Counter(empty=empty, cut=completion.finish is Finish.LENGTH)
        assert policy.cost_towards_caps.tokens == 15


@pytest.mark.parametrize(
    "refusal",
    [
        Refuse(400, "Too long.", "context_length_exceeded"),
        Refuse(400, OVERFLOW, 400, "BadRequestError"),
        Refuse(500, "the request exceeds the available context size", 500),
        Refuse(400, "n_ctx", 400, "exceed_context_size_error"),
        Refuse(400, "Requested tokens (2285) exceed context window of 2048"),
        Refuse(400, "The input (9 tokens) is longer than the model's context length (8 tokens)."),
        Refuse(422, "`inputs` tokens + `max_new_tokens` must be <= 2048. Given: 3000"),
    ],
)
def test_a_prompt_that_does_not_fit_overflows_and_its_siblings_are_answered(
    server: FakeOpenAI, refusal: Refuse, caplog: pytest.LogCaptureFixture
) -> None:
    server.expect("Long?", refusal, refusal)
    server.expect("Short?", Say("Short."))
    with policy_for(server) as policy:
        long, short, again = ask(policy, "Long?", "Short?", "Long?")
        assert policy.counts["overflows"] == 2
        assert policy.usage.calls == 3
    assert long == again == Completion("", None, Finish.OVERFLOW)
    assert short.text == "Short."
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1


def test_an_ordinary_refusal_is_not_an_overflow() -> None:
    assert not is_overflow(401, RefusalBody(("context_length_exceeded",), OVERFLOW))
    assert not is_overflow(400, RefusalBody(("invalid_request_error",), "temperature must be >= 0"))


def test_a_choice_request_is_refused(server: FakeOpenAI) -> None:
    with policy_for(server) as policy:
        assert policy.generate([]) == []
        with pytest.raises(ConfigError, match=r"needs a Prompt, got Choice.*ChatAgent"):
            policy.generate([Choice(View("", ""), ("a",))])


def test_prompts_that_continue_token_ids_are_refused(server: FakeOpenAI) -> None:
    prompt = Prompt((Message("user", "on"),), after=TokenDecision((1,), (2,), (-0.5,)))
    with policy_for(server) as policy, pytest.raises(ConfigError, match="runs in this process"):
        policy.generate([prompt])
    assert server.answered == 0


# Faults


@pytest.mark.parametrize(
    "fault",
    [Refuse(429), Refuse(500), Refuse(503), Drop()],
    ids=["429", "500", "503", "dropped"],
)
def test_transient_faults_are_retried(server: FakeOpenAI, fault: Refuse | Drop) -> None:
    server.expect("Hello?", fault, fault, Say("Hello."))
    with policy_for(server, max_attempts=3) as policy:
        assert ask(policy, "Hello?")[0].text == "Hello."
        assert (policy.usage.calls, policy.counts["retries"]) == (3, 2)
        assert policy.usage.tokens == 15


def test_the_last_failed_attempt_raises_a_model_error(server: FakeOpenAI) -> None:
    error = failure(server, [Refuse(503, "Warming up")] * 3, max_attempts=3)
    assert not isinstance(error, RateLimited)
    assert str(error).startswith(f"fake at {server.url} gave no answer 3 times: ")
    assert "status 503, Warming up. Check the server's log, or raise" in str(error)


def test_status_429_on_every_attempt_raises_rate_limited(server: FakeOpenAI) -> None:
    error = failure(server, [Refuse(429, "Slow down")] * 2, max_attempts=2)
    assert isinstance(error, RateLimited)
    assert "status 429, Slow down. Lower max_concurrency" in str(error)


def test_an_account_without_credit_is_not_retried(server: FakeOpenAI) -> None:
    error = failure(server, [Refuse(429, "No credit.", "insufficient_quota")])
    assert isinstance(error, RateLimited)


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (400, "Check that the server supports model, max_tokens_field"),
        (403, "Set OPENAI_API_KEY to a key that may use this model."),
        (404, "Check base_url and model"),
        (422, "Check that the server supports model"),
    ],
)
def test_permanent_errors_are_not_retried_and_give_advice(
    server: FakeOpenAI, status: int, advice: str
) -> None:
    error = failure(server, [Refuse(status, "Never.")])
    assert f"gave no answer: status {status}, Never. {advice}" in str(error)


NO_COMPLETION = {
    "truncated": b'{"choices": [',
    "empty object": b"{}",
    "no choices": b'{"choices": []}',
    "null": b"null",
    "error": b'{"error": {"message": "Try later.", "code": 502}}',
    "page": b"<html>Hi</html>",
}


@pytest.mark.parametrize("place", [0, 1])
def test_a_response_with_an_absurd_token_count_is_retried(server: FakeOpenAI, place: int) -> None:
    usage = (5, 10**310) if place else (10**310, 5)
    server.expect("Hello?", Say("Hello.", usage=usage), Say("Hello."))
    with policy_for(server, usd_per_million_prompt_tokens=1.0) as policy:
        assert ask(policy, "Hello?")[0].text == "Hello."
        assert (policy.usage.calls, policy.usage.tokens) == (2, 15)


BOMB = gzip.compress(bytes(64 << 20))
UNREAD = {
    "gzip": (Raw(BOMB, headers={"Content-Encoding": "gzip"}), "compressed ('gzip')"),
    "gzip twice": (
        Raw(gzip.compress(BOMB), headers={"Content-Encoding": "gzip, gzip"}),
        "compressed ('gzip, gzip')",
    ),
    "endless": (Flood(), "larger than 16,777,216 bytes"),
    "endless error": (Flood(status=400), "larger than 16,777,216 bytes"),
}


@pytest.mark.parametrize(("bad", "why"), UNREAD.values(), ids=UNREAD)
def test_compressed_and_endless_responses_are_refused(
    server: FakeOpenAI, bad: Behaviour, why: str
) -> None:
    error = failure(server, [bad, bad], max_attempts=2)
    assert f"gave no answer 2 times: the response is {why}. Check that base_url" in str(error)


def test_the_body_of_a_redirect_is_not_read(server: FakeOpenAI) -> None:
    here = {"Location": "/v1/chat/completions"}
    server.expect("Hello?", Flood(status=307, headers=here), Say("Hello."))
    with policy_for(server, max_attempts=1) as policy:
        assert ask(policy, "Hello?")[0].text == "Hello."
    server.wait_until(lambda fake: fake.answered == 1)  # the first never came to its end


@pytest.mark.parametrize("status", [200, 400])
def test_a_charset_that_decodes_no_text_is_ignored(server: FakeOpenAI, status: int) -> None:
    odd = {"Content-Type": "application/json; charset=rot13"}
    bad = Raw(b"<html>", headers=odd) if status == 200 else Refuse(400, "Never.", headers=odd)
    why = "not a chat completion: '<html>'" if status == 200 else "status 400, Never."
    assert why in str(failure(server, [bad], max_attempts=1))


def test_cookies_are_neither_stored_nor_sent(server: FakeOpenAI) -> None:
    busy = [Refuse(500, headers={"Set-Cookie": f"n{n}={'x' * 2000}"}) for n in range(2)]
    server.expect("Hello?", *busy, Say("Hello."))
    with policy_for(server, max_attempts=3) as policy:
        assert ask(policy, "Hello?")[0].text == "Hello."
        assert not policy._client._client.cookies
    assert server.cookies == []


def test_a_redirect_to_an_invalid_address_raises_a_model_error(server: FakeOpenAI) -> None:
    bad = Refuse(307, headers={"Location": "http://127.0.0.1:99999/"})
    error = failure(server, [bad], max_attempts=1)
    assert "Check that the server runs and that base_url is right." in str(error)


@pytest.mark.parametrize("body", NO_COMPLETION.values(), ids=NO_COMPLETION)
def test_a_response_that_is_no_completion_is_retried(server: FakeOpenAI, body: bytes) -> None:
    server.expect("Hello?", Raw(body), Raw(body), Say("Hello."))
    with policy_for(server, max_attempts=3) as policy:
        assert ask(policy, "Hello?") == [Completion("Hello.", None)]
        assert (policy.usage.calls, policy.counts["retries"]) == (3, 2)


@pytest.mark.parametrize("body", NO_COMPLETION.values(), ids=NO_COMPLETION)
def test_a_server_that_never_sends_a_completion_raises_a_model_error(
    server: FakeOpenAI, body: bytes
) -> None:
    error = failure(server, [Raw(body)] * 2, max_attempts=2)
    assert "gave no answer 2 times: its response is not a chat completion" in str(error)
    assert "Check that base_url" in str(error)


def test_an_error_object_in_a_response_can_report_an_overflow(server: FakeOpenAI) -> None:
    server.expect("Hello?", Raw(json.dumps({"error": {"message": OVERFLOW}}).encode()))
    with policy_for(server) as policy:
        assert ask(policy, "Hello?") == [Completion("", None, Finish.OVERFLOW)]


@pytest.mark.parametrize(
    "bad",
    [Raw(b"<html>Hi</html>"), Raw(b'{"choices": ['), Refuse(408), Refuse(503), Refuse(429), Drop()],
    ids=["page", "truncated", "408", "503", "429", "dropped"],
)
def test_a_lost_request_does_not_affect_others(server: FakeOpenAI, bad: Behaviour) -> None:
    server.expect("Hello?", Say("Hello."))
    server.expect("Bad?", bad, bad)
    server.expect("Good?", Say("Good."))
    with policy_for(server, max_attempts=2) as policy:
        ask(policy, "Hello?")
        lost, good = ask(policy, "Bad?", "Good?")
        assert lost.finish is Finish.LOST
        assert "gave no answer 2 times" in lost.text
        assert good == Completion("Good.", None)
        assert policy.counts["lost"] == 1


def test_sixteen_lost_requests_in_a_row_raise(server: FakeOpenAI) -> None:
    server.expect("Hello?", Say("Hello."), *[Refuse(503)] * 15, Say("Hello."), *[Refuse(503)] * 16)
    with policy_for(server, max_attempts=1) as policy:
        ask(policy, "Hello?")
        for _ in range(15):
            assert ask(policy, "Hello?")[0].finish is Finish.LOST
        ask(policy, "Hello?")  # what came through begins the count anew
        for _ in range(15):
            ask(policy, "Hello?")
        with pytest.raises(ModelError, match="status 503"):
            ask(policy, "Hello?")


def test_a_slow_answer_times_out(server: FakeOpenAI) -> None:
    server.expect("Hello?", Hold(Say("late")))
    with (
        policy_for(server, max_attempts=1, timeout_s=0.2) as policy,
        pytest.raises(ModelError, match=r"no answer within timeout_s=0.2\. Raise timeout_s"),
    ):
        ask(policy, "Hello?")


def test_a_timed_out_request_is_retried(server: FakeOpenAI) -> None:
    server.expect("Hello?", Hold(Say("late")), *[Say("in time")] * 9)
    with policy_for(server, max_attempts=10, timeout_s=0.5) as policy:
        assert ask(policy, "Hello?")[0].text == "in time"


def test_an_unreachable_server_raises_with_advice() -> None:
    with FakeOpenAI() as gone:
        url = gone.url
    config = EndpointConfig(model="fake", base_url=url, max_attempts=2, backoff_base_s=1e-4)
    says = r"2 times: ConnectError: [^.]+\. Check that the server runs"
    with OpenAIPolicy(config) as policy, pytest.raises(ModelError, match=says):
        ask(policy, "Hello?")


def waits(caplog: pytest.LogCaptureFixture) -> list[float]:
    """Seconds of the waits that were logged."""
    records = [record for record in caplog.records if record.msg.startswith("retry ")]
    return [record.args[2] for record in records if isinstance(record.args, tuple)]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("header", "cap_s", "low", "high"),
    [("0.05", 5.0, 0.05, 0.06), ("3600", 0.01, 0.01, 0.01), ("soon", 5.0, 0.0, 1e-4)],
)
def test_retry_after_is_obeyed_up_to_the_backoff_cap(
    server: FakeOpenAI,
    caplog: pytest.LogCaptureFixture,
    header: str,
    cap_s: float,
    low: float,
    high: float,
) -> None:
    caplog.set_level(logging.INFO, "coevo_gym")
    server.expect("Hello?", Refuse(429, headers={"Retry-After": header}), Say("Hello."))
    with policy_for(server, backoff_cap_s=cap_s) as policy:
        assert ask(policy, "Hello?")[0].text == "Hello."
    (wait_s,) = waits(caplog)
    assert low <= wait_s <= high


def test_retry_after_dates_are_converted_to_seconds() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert retry_after_s("Thu, 01 Jan 2026 00:00:30 GMT", now) == 30.0
    assert retry_after_s("Wed, 31 Dec 2025 00:00:00 GMT", now) == 0.0
    assert retry_after_s("Fri, 31 Dec 9999 23:59:59 -2359") == 0.0
    assert retry_after_s("nan") == 0.0


def test_after_a_failure_siblings_in_flight_are_counted_and_queued_ones_not_sent(
    server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()
    count = Meter.count

    def count_and_refuse(meter: Meter, *arguments: Any) -> None:
        count(meter, *arguments)
        refused.set()  # the others are told before anything else happens in the client

    monkeypatch.setattr(Meter, "count", count_and_refuse)
    good, bad = Hold(Say("Good.")), Hold(Refuse(404, "Bad."))
    server.expect("Good?", good)
    server.expect("Bad?", bad)
    with ThreadPoolExecutor() as pool, policy_for(server, max_concurrency=2) as policy:
        call = pool.submit(ask, policy, "Good?", "Bad?", "Never sent?", "Nor this?")
        server.wait_until(lambda fake: fake.in_flight == 2)
        bad.until.set()
        assert refused.wait(PATIENCE_S)
        assert not call.done()
        good.until.set()
        with pytest.raises(ModelError, match=r"Bad.*(.|\n)*1 of the 4 requests") as caught:
            call.result()
        assert policy.usage.tokens == 15
    assert "no answer is returned" in caught.value.__notes__[0]
    assert len(server.bodies) == 2


def test_a_failure_stops_siblings_that_wait_to_retry(server: FakeOpenAI) -> None:
    bad = Hold(Refuse(404, "Bad."))
    server.expect("Busy?", Refuse(429, headers={"Retry-After": "3600"}))
    server.expect("Bad?", bad)
    with (
        ThreadPoolExecutor() as pool,
        policy_for(server, backoff_cap_s=3600.0) as policy,
    ):
        call = pool.submit(ask, policy, "Busy?", "Bad?")
        server.wait_until(lambda fake: fake.answered == 1)
        bad.until.set()
        with pytest.raises(ModelError, match="Bad"):
            call.result()


# Counting and caps


def test_a_resumed_run_continues_its_counts(server: FakeOpenAI) -> None:
    server.expect("Hello?", Say("Hello."), Say("Again.", usage=(100, 50)))
    prices = {"usd_per_million_prompt_tokens": 2.0, "usd_per_million_completion_tokens": 10.0}
    with policy_for(server, **prices) as policy:
        ask(policy, "Hello?")
        state = policy.state_dict()
        assert state["cost_usd"] == pytest.approx(70e-6)
    with policy_for(server, **prices) as resumed:
        resumed.load_state_dict(state)
        ask(resumed, "Hello?")
        usage = resumed.usage
    assert (usage.calls, usage.prompt_tokens, usage.completion_tokens) == (2, 110, 55)
    assert usage.usd == pytest.approx(770e-6)


def test_a_request_that_may_exceed_max_tokens_total_is_not_sent(server: FakeOpenAI) -> None:
    # 6 bytes, 16 around the message and 16 of the answer: at most 38 tokens; 15 are spent.
    server.expect("Hello?", Say("Hello."), Say("Hello."), Say("Hello."))
    with policy_for(server, max_tokens_total=15 + 38) as policy:
        ask(policy, "Hello?")
        ask(policy, "Hello?")
        with pytest.raises(
            BudgetSpent,
            match=r"30 tokens of max_tokens_total=53 are spent, .* up to 38. Raise max_tokens",
        ):
            ask(policy, "Hello?")
        assert policy.usage.calls == 2


def test_a_request_that_may_exceed_max_usd_total_is_not_sent(server: FakeOpenAI) -> None:
    prices = {"usd_per_million_prompt_tokens": 1e6, "usd_per_million_completion_tokens": 2e6}
    server.expect("Hello?", Say("Hello."))  # 10 + 2 * 5 USD of at most 22 + 2 * 16
    with policy_for(server, max_usd_total=73.0, **prices) as policy:
        ask(policy, "Hello?")
        with pytest.raises(
            BudgetSpent,
            match=r"20.0000 USD of max_usd_total=73.0 are spent, .* up to 54.0000. Raise max_usd",
        ):
            ask(policy, "Hello?")


def test_requests_in_flight_delay_others_but_do_not_refuse_them(server: FakeOpenAI) -> None:
    texts = [f"Hello{i}" for i in range(4)]
    for text in texts:
        server.expect(text, Say("Hello."))
    with policy_for(server, max_tokens_total=3 * 15 + 38) as policy:
        assert len(ask(policy, *texts)) == 4
        assert policy.usage.tokens == 60


def test_a_request_waits_while_those_in_flight_may_use_up_the_cap() -> None:
    meter = Meter(Caps(max_tokens_total=2 * 38 + 37))
    request = [max_token_counts(prompt("Hello?"))]

    async def hold() -> None:
        async with meter.reserve_async(request) as n:
            assert n == 1

    async def three() -> None:
        async with meter.reserve_async(request):
            async with meter.reserve_async(request):
                third = asyncio.create_task(hold())
                for _ in range(10):
                    await asyncio.sleep(0)
                assert not third.done()
            await third

    asyncio.run(three())


def test_answers_beside_a_request_beyond_the_cap_are_returned(server: FakeOpenAI) -> None:
    long = "word " * 60
    server.expect("Hello?", Say("Hello."))
    with policy_for(server, max_tokens_total=200) as policy:
        answers = ask(policy, long, "Hello?", long)
        assert [answer.finish for answer in answers] == [Finish.CAPPED, Finish.STOP, Finish.CAPPED]
        assert "of max_tokens_total=200 are spent" in answers[0].text
        assert policy.usage.calls == 1
        with pytest.raises(BudgetSpent, match="15 tokens of max_tokens_total=200 are spent"):
            ask(policy, long, long)


def test_in_words_contains_the_cost_if_a_price_is_set(server: FakeOpenAI) -> None:
    for price, expected in ((0.0, "price not set"), (1.0, "0.0000 USD")):
        with policy_for(server, usd_per_million_prompt_tokens=price) as policy:
            assert policy.describe_usage().endswith(expected)


def test_counts_are_saved_before_a_request_is_sent(server: FakeOpenAI, tmp_path: Path) -> None:
    file, hold = tmp_path / "counts.json", Hold(Say("Hello."))
    server.expect("Hello?", hold)
    with policy_for(server) as policy:
        policy.sync_counts_with(file)
        thread = threading.Thread(target=ask, args=(policy, "Hello?"))
        thread.start()
        server.wait_until(lambda server: server.in_flight == 1)
        assert json.loads(file.read_text())["capped_tokens"] == 38  # the most that it may take
        hold.until.set()
        thread.join(60)
    assert json.loads(file.read_text())["capped_tokens"] == 15
    with policy_for(server) as later:
        later.sync_counts_with(file)
        assert (later.usage.calls, later.cost_towards_caps.tokens) == (1, 15)


def test_a_loaded_state_counts_towards_the_cap(server: FakeOpenAI) -> None:
    with policy_for(server, max_tokens_total=100) as policy:
        policy.load_state_dict(policy.state_dict() | {"capped_tokens": 99})
        with pytest.raises(BudgetSpent, match="99 tokens of max_tokens_total=100 are spent"):
            ask(policy, "Hello?")


def test_missing_token_counts_are_counted_as_unknown_and_warned_about_once(
    server: FakeOpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    server.expect("Hello?", *[Say("Hello.", usage=None)] * 2)
    with policy_for(server) as policy:
        ask(policy, "Hello?", "Hello?")
        assert policy.counts["unknown"] == policy.usage.calls == 2
        assert policy.usage.tokens == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no usage reported" in caplog.text


def test_an_answer_without_token_counts_is_charged_the_maximum(server: FakeOpenAI) -> None:
    # 6 bytes, 16 around the message and 16 of the answer: at most 38 tokens.
    server.expect("Hello?", *[Say("Hello.", usage=None)] * 2)
    with policy_for(server, max_tokens_total=2 * 38) as policy:
        ask(policy, "Hello?")
        ask(policy, "Hello?")
        with pytest.raises(BudgetSpent, match="76 tokens of max_tokens_total=76 are spent"):
            ask(policy, "Hello?")


def test_a_server_that_reports_zero_tokens_still_reaches_the_cap(server: FakeOpenAI) -> None:
    question, answer = "word " * 60, "word " * 6  # at least 300 // 6 and 30 // 6 tokens
    server.expect(question, *[Say(answer, usage=(0, 0))] * 2)
    prices = {"usd_per_million_prompt_tokens": 1e6, "usd_per_million_completion_tokens": 2e6}
    with policy_for(server, max_usd_total=2 * 60 + 300, **prices) as policy:
        ask(policy, question)
        ask(policy, question)
        with pytest.raises(BudgetSpent, match=r"120\.0000 USD of max_usd_total=420\.0 are spent"):
            ask(policy, question)
        assert policy.usage.usd == 0.0
        assert policy.cost_towards_caps.tokens == 2 * 55


@pytest.mark.parametrize(
    ("fault", "tokens"), [(Raw(b"<html>"), 50), (Drop(), 50), (Refuse(503), 0)]
)
def test_a_failed_attempt_is_charged_for_its_prompt_unless_it_was_refused(
    server: FakeOpenAI, fault: Behaviour, tokens: int
) -> None:
    question = "word " * 60
    server.expect(question, fault, Say("Yes.", usage=(70, 1)))
    with policy_for(server) as policy:
        ask(policy, question)
        assert policy.cost_towards_caps.tokens == tokens + 71
        assert policy.usage.tokens == 71


def test_a_prompt_that_reaches_no_server_is_not_charged() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        with OpenAIPolicy(EndpointConfig(model="m", base_url=url, max_attempts=1)) as policy:
            with pytest.raises(ModelError, match="Check that the server runs"):
                ask(policy, "word " * 60)
            assert policy.cost_towards_caps.tokens == 0


@pytest.mark.parametrize(
    ("url", "names", "variable"),
    [
        ("http://gpu-box:8000/v1", {"HTTP_PROXY": "http://me:secret@proxy:3128"}, "HTTP_PROXY"),
        ("https://gpu-box/v1", {"https_proxy": "http://proxy:3128"}, "https_proxy"),
        ("http://gpu-box/v1", {"ALL_PROXY": "http://proxy:3128"}, "ALL_PROXY"),
        ("http://gpu-box/v1", {"https_proxy": "http://proxy:3128"}, ""),
        ("http://gpu-box/v1", {"http_proxy": "http://proxy:3128", "no_proxy": "gpu-box"}, ""),
        ("http://127.0.0.1:1/v1", {"http_proxy": "http://proxy:3128"}, ""),
    ],
)
def test_a_proxy_from_the_environment_is_detected(
    url: str, names: dict[str, str], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    assert EndpointConfig(base_url=url).proxy == (f"{variable}=proxy:3128" if variable else "")


def test_an_error_behind_a_proxy_mentions_the_proxy(
    server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = server.url.removesuffix("/v1")  # knows nothing of other servers
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, proxy)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server.expect("Hello?", Say("Hello."))
    with policy_for(server) as policy:  # an address of this machine needs no proxy
        assert ask(policy, "Hello?")[0].text == "Hello."
    config = EndpointConfig(
        model="fake", base_url="http://gpu-box:1/v1", max_attempts=1, api_key_env=None
    )
    with OpenAIPolicy(config) as policy, pytest.raises(ModelError) as caught:
        ask(policy, "Hello?")
    assert f"the proxy http_proxy={proxy.removeprefix('http://')}; NO_PROXY" in str(caught.value)


# The key


def texts_of(error: BaseException | None) -> Iterator[str]:
    """All that a traceback of an error could print."""
    while error is not None:
        yield from (str(error), repr(error), *getattr(error, "__notes__", ()))
        error = error.__cause__ or error.__context__


def test_the_api_key_is_in_no_error_log_or_state(
    server: FakeOpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.key = "another"
    server.expect("Hello?")
    with policy_for(server, max_attempts=1) as policy, pytest.raises(ModelError) as caught:
        ask(policy, "Hello?")
    assert server.keys == [KEY]
    assert "Incorrect API key provided: ***" in str(caught.value)
    assert "Set OPENAI_API_KEY" in str(caught.value)
    texts = [*texts_of(caught.value), caplog.text, repr(policy), str(vars(policy))]
    assert not [text for text in [*texts, str(policy.state_dict())] if KEY in text]


def test_without_an_api_key_a_placeholder_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeOpenAI() as local:
        local.expect("Hello?", Say("Hello."), Say("Hello."))
        with policy_for(local, api_key_env=None) as policy:
            ask(policy, "Hello?")
        monkeypatch.delenv("OPENAI_API_KEY")
        with policy_for(local) as policy:
            ask(policy, "Hello?")
    assert local.keys == ["no-key", "no-key"]
    assert not local.problems


@pytest.mark.parametrize("key", ["sk-a\nb", "sk-é", "two words"])
def test_an_invalid_api_key_is_refused_without_printing_it(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(ConfigError, match="MY_KEY") as caught:
        OpenAIPolicy(EndpointConfig(model="fake", api_key_env="MY_KEY"))
    assert key not in str(caught.value)


def test_a_url_with_a_password_or_without_a_scheme_is_refused() -> None:
    with pytest.raises(ValidationError) as caught:
        EndpointConfig(model="fake", base_url="https://user:sk-1@host/v1")
    assert "sk-1" not in str(caught.value)
    with pytest.raises(ValidationError, match="such as http://localhost:8000/v1"):
        EndpointConfig(model="fake", base_url="localhost:8000/v1")


def test_a_cap_on_money_needs_prices() -> None:
    with pytest.raises(ValidationError, match="has no effect"):
        EndpointConfig(model="fake", max_usd_total=1.0)


# The loop


def test_the_policy_works_inside_a_running_event_loop(server: FakeOpenAI) -> None:
    server.expect("Hello?", Say("Hello."))

    async def notebook() -> list[Completion]:
        with policy_for(server) as policy:
            return ask(policy, "Hello?")

    assert asyncio.run(notebook())[0].text == "Hello."


def test_a_closed_policy_raises_a_model_error(server: FakeOpenAI) -> None:
    server.expect("Hello?", Say("Hello."))
    policy = policy_for(server)
    ask(policy, "Hello?")
    policy.close()
    policy.close()
    with pytest.raises(ModelError, match="is closed"):
        ask(policy, "Hello?")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_must_create_its_own_policy(server: FakeOpenAI, tmp_path: Path) -> None:
    """Without a thread that runs the loop, a request there would wait for ever."""
    server.expect("Hello?", Say("Hello."), Say("Hello."))
    counts, report = tmp_path / "counts.json", tmp_path / "said"
    with policy_for(server) as policy:
        policy.sync_counts_with(counts)
        ask(policy, "Hello?")
        if (child := os.fork()) == 0:
            signal.alarm(60)  # ends the child if it waits
            try:
                ask(policy, "Hello?")
            except ModelError as error:
                report.write_text(str(error))
                counts.unlink()
                policy.close()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert "Create the policy in the process that uses it" in report.read_text()
        assert not counts.exists()
        assert ask(policy, "Hello?")[0].text == "Hello."


def test_closing_ends_a_call_in_another_thread(server: FakeOpenAI) -> None:
    server.expect("Hello?", Hold(Say("late")))
    with ThreadPoolExecutor() as pool, policy_for(server) as policy:
        call = pool.submit(ask, policy, "Hello?")
        server.wait_until(lambda fake: fake.in_flight == 1)
        policy.close()
        with pytest.raises(ModelError, match="is closed"):
            call.result()


async def _nothing() -> None:
    return


def test_an_interrupt_cancels_the_running_work_before_it_is_raised() -> None:
    main, steps = threading.get_ident(), []

    async def work() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("cancelled")

    loop = LoopThread(_nothing)
    with pytest.raises(KeyboardInterrupt):
        loop.run(work())
    assert steps == ["cancelled"]
    loop.close()


def test_a_policy_that_is_not_closed_causes_no_resource_warning(server: FakeOpenAI) -> None:
    server.expect("Hello?", Say("Hello."))
    code = (
        "import sys\n"
        "from coevo_gym.agents.endpoint.openai_policy import EndpointConfig, OpenAIPolicy\n"
        "from coevo_gym.core.seams import Message, Prompt\n"
        "policy = OpenAIPolicy(EndpointConfig(model='fake', base_url=sys.argv[1]))\n"
        "print(policy.generate([Prompt((Message('user', 'Hello?'),))])[0].text)\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", code, server.url],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    assert done.stdout == "Hello.\n"
    # On a busy machine asyncio's debug mode also tells how long a callback took.
    assert [line for line in done.stderr.splitlines() if " took " not in line] == []
