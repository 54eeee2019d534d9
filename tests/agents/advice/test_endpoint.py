"""Models over a wire: what the server counts, what a kill leaves, what a replay needs."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coevo_gym.agents.advice.advisor import Budgeted, ModelAdvisor
from coevo_gym.agents.advice.tape import Tape
from coevo_gym.agents.endpoint.openai_policy import EndpointConfig, OpenAIPolicy
from coevo_gym.core.errors import ModelError
from coevo_gym.core.inquiry import AnswerStore
from coevo_gym.core.seams import Finish, Message, Prompt
from coevo_gym.core.spend import NO_USAGE, Caps, Meter, Prices
from coevo_gym.store.answers import AnswerFile, AnswerTable
from tests import processes
from tests.agents.advice.kettle import GOOD, load_prompt, make_inquiry
from tests.agents.fake_openai import Behaviour, Drop, FakeOpenAI, Hold, Messages, Refuse, Say

KEY = "sk-secret-4711"
PRICES = Prices(2.0, 10.0)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OPENAI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def words(messages: Messages, text: str) -> Say:
    """An answer that costs a token a word."""
    return Say(
        text, usage=(sum(len(content.split()) for _, content in messages), len(text.split()))
    )


def study(messages: Messages) -> Behaviour:
    """Answers a third of the stories badly, and a repair as it should."""
    last = messages[-1][1]
    bad = "Unusable" not in last and sum(last.encode()) % 3 == 0
    return words(messages, "It boiled, I think." if bad else GOOD)


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(key=KEY, answer=study) as fake:
        yield fake
    assert not fake.problems


def endpoint(fake: FakeOpenAI, **settings: Any) -> OpenAIPolicy:
    defaults = {
        "model": "fake",
        "base_url": fake.url,
        "backoff_base_s": 1e-4,
        "usd_per_million_prompt_tokens": PRICES.prompt,
        "usd_per_million_completion_tokens": PRICES.completion,
    }
    return OpenAIPolicy(EndpointConfig(**(defaults | settings)))


def ask_all(policy: Budgeted, n: int) -> list[Any]:
    asking = ModelAdvisor(policy, load=load_prompt, count=policy.meter.count)
    return asking.ask([make_inquiry(f"story {i}") for i in range(n)])


def prompts(*texts: str) -> list[Prompt]:
    return [Prompt((Message("user", text),)) for text in texts]


# What is spent


def test_a_budget_of_fifty_calls_sends_fifty_and_counts_the_tokens_of_the_server(
    server: FakeOpenAI,
) -> None:
    budget = Meter(Caps(max_calls_per_round=50))
    with endpoint(server) as policy, budget.scope("round-1") as spent:
        answers = ask_all(Budgeted(policy, budget, prices=PRICES), 60)
        usage = spent()["kettle/summary"]
        policy_usage = policy.usage
    assert len(server.bodies) == usage.calls == 50
    assert [answer.problem for answer in answers].count("budget") >= 10
    assert sum((answer.usage for answer in answers), NO_USAGE) == usage
    assert usage.prompt_tokens == server.prompt_tokens == policy_usage.prompt_tokens > 0
    assert usage.completion_tokens == server.completion_tokens == policy_usage.completion_tokens > 0
    assert usage.usd == pytest.approx(policy_usage.usd)
    assert usage.seconds > 0


def test_every_inquiry_is_answered_if_no_cap_stops_its_repair(server: FakeOpenAI) -> None:
    budget = Meter()
    with endpoint(server) as policy, budget.scope("round-1") as spent:
        answers = ask_all(Budgeted(policy, budget), 20)
        usage = spent()["kettle/summary"]
    assert all(answer.value is not None for answer in answers)
    assert len(server.bodies) == usage.calls > 20
    assert usage.tokens == server.prompt_tokens + server.completion_tokens


def test_every_retry_of_a_request_is_counted_as_a_call(server: FakeOpenAI) -> None:
    server.expect("Hello?", Refuse(503), Drop(), Say("Hello.", usage=(7, 3)))
    server.expect("Long?", Refuse(400, "Too long.", "context_length_exceeded"))
    server.expect("Bad?", Refuse(503), Refuse(503), Refuse(503))
    with endpoint(server, max_attempts=3) as policy:
        hello, long, bad = policy.generate(prompts("Hello?", "Long?", "Bad?"))
    assert [completion.usage.calls for completion in (hello, long, bad)] == [3, 1, 3]
    assert (hello.usage.prompt_tokens, hello.usage.completion_tokens) == (7, 3)
    assert (bad.finish, long.finish) == (Finish.LOST, Finish.OVERFLOW)
    assert long.usage.tokens == bad.usage.tokens == 0
    assert len(server.bodies) == 7


def test_an_answer_without_token_counts_is_charged_the_maximum(
    server: FakeOpenAI,
) -> None:
    server.expect("Hello?", Say("Hello.", usage=None))
    with endpoint(server) as policy:
        (completion,) = policy.generate(prompts("Hello?"))
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (6 + 16, 512)
    assert completion.usage.usd == pytest.approx((22 * 2 + 512 * 10) / 1e6)


def test_the_seconds_of_a_batch_add_up_to_its_duration(
    server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(100))
    time = SimpleNamespace(perf_counter=lambda: float(next(clock)), monotonic=lambda: 0.0)
    monkeypatch.setattr("coevo_gym.agents.endpoint.openai_policy.time", time)
    with endpoint(server) as policy:
        completions = policy.generate(prompts("a", "b", "c"))
    assert sum(one.usage.seconds for one in completions) == 3.0


# Keys


def test_an_api_key_in_a_response_is_redacted_in_answers_and_tapes(
    server: FakeOpenAI, tmp_path: Path
) -> None:
    server.expect("Key?", Say(f"Your key is {KEY}."), Say(f"Your key is {KEY}."))
    server.expect("Bad?", Refuse(503, f"Who is {KEY}?"), Refuse(503, f"Who is {KEY}?"))
    stores: list[AnswerStore] = [
        AnswerFile(tmp_path / "tape.jsonl"),
        AnswerTable(tmp_path / "run.db"),
    ]
    budget = Meter()
    with endpoint(server, max_attempts=1) as policy:
        policy.generate(prompts("Hello?"))
        for store in stores:
            tape = Tape(policy, store, "record", model="fake", scopes=budget.scopes)
            key, bad = Budgeted(tape, budget).generate(prompts("Key?", "Bad?"))
            assert key.text == "Your key is ***."
            assert "Who is ***?" in bad.text
    assert server.keys == [KEY] * 5
    files = [path.read_bytes() for path in tmp_path.iterdir()]
    contents = [str(store.get(_keys(tmp_path))) for store in stores]
    assert all("***" in text for text in contents)
    assert not [text for text in contents if KEY in text]
    assert not [data for data in files if KEY.encode() in data]
    assert KEY not in json.dumps(budget.state_dict())


def _keys(folder: Path) -> list[str]:
    lines = (folder / "tape.jsonl").read_bytes().splitlines()
    return [json.loads(line)["key"] for line in lines]


# Replays


def refuse_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any, **keywords: Any) -> Any:
        raise AssertionError("a replay opened a socket")

    monkeypatch.setattr(socket, "socket", refused)
    monkeypatch.setattr(socket, "create_connection", refused)


def test_a_replay_opens_no_socket_and_reports_the_recorded_cost(
    server: FakeOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tape.jsonl"
    budget = Meter()
    with endpoint(server) as policy, budget.scope("round-1") as spent:
        tape = Tape(policy, AnswerFile(path), "record", model="fake", scopes=budget.scopes)
        recorded = ask_all(Budgeted(tape, budget), 20)
        cost = spent()["kettle/summary"]
    refuse_sockets(monkeypatch)
    for _ in range(2):
        again = Meter()
        replay = Tape(None, AnswerFile(path), "replay", model="fake", scopes=again.scopes)
        with again.scope("round-1") as spent:
            answers = ask_all(Budgeted(replay, again), 20)
            usage = spent()["kettle/summary"]
        assert [answer.value for answer in answers] == [answer.value for answer in recorded]
        assert usage.model_copy(update={"calls": usage.cached, "cached": 0, "seconds": 0.0}) == (
            cost.model_copy(update={"seconds": 0.0})
        )
        assert usage.seconds == pytest.approx(cost.seconds)


def test_a_budget_runs_out_at_the_same_request_in_a_replay(
    server: FakeOpenAI, tmp_path: Path
) -> None:
    config = Caps(max_tokens_per_round=1500)
    path = tmp_path / "run.db"
    problems: list[list[str]] = []
    with endpoint(server) as policy:
        for mode in ("record", "replay"):
            budget = Meter(config)
            tape = Tape(
                policy, AnswerTable(path), "record" if mode == "record" else "replay",
                model="fake", scopes=budget.scopes,
            )  # fmt: skip
            with budget.scope("round-1"):
                problems.append([answer.problem for answer in ask_all(Budgeted(tape, budget), 60)])
    assert problems[0] == problems[1]
    assert 0 < problems[0].count("budget") < 60


# Faults


def test_requests_answered_before_a_batch_failed_are_not_repeated(
    server: FakeOpenAI, tmp_path: Path
) -> None:
    bad = Hold(Refuse(404, "Never."))
    server.expect("Bad?", bad, Say("At last."))
    texts = ["one", "two", "Bad?", "three"]
    store = AnswerFile(tmp_path / "tape.jsonl")
    with endpoint(server) as policy:
        tape = Tape(policy, store, "fill", model="fake")
        bad.until.set()
        with tape.scopes("round-1"), pytest.raises(ModelError, match="Never"):
            tape.generate(prompts(*texts))
        answered = Counter(body["messages"][0]["content"] for body in server.bodies)
        n_lines = len((tmp_path / "tape.jsonl").read_bytes().splitlines())
        with tape.scopes("round-1"):
            assert tape.generate(prompts(*texts))[2].text == "At last."
    assert answered["Bad?"] == 1
    assert len(server.bodies) == sum(answered.values()) + len(texts) - n_lines


def test_requests_lost_before_a_batch_failed_are_repeated(
    server: FakeOpenAI, tmp_path: Path
) -> None:
    server.expect("Lost?", Refuse(503), Refuse(503), Say("Found."))
    server.expect("Bad?", Refuse(404, "Never."), Say("At last."))
    store = AnswerFile(tmp_path / "tape.jsonl")
    with endpoint(server, max_attempts=1, max_concurrency=1) as policy:
        policy.generate(prompts("Hello?"))
        tape = Tape(policy, store, "fill", model="fake")
        with tape.scopes("round-1"), pytest.raises(ModelError, match="Never"):
            tape.generate(prompts("Lost?", "Bad?"))
        with tape.scopes("round-1"):
            lost, bad = tape.generate(prompts("Lost?", "Bad?"))
        with tape.scopes("round-1"):  # now it is what came of it
            assert tape.generate(prompts("Lost?"))[0].finish is Finish.LOST
    assert (lost.finish, bad.text) == (Finish.LOST, "At last.")
    assert len(server.bodies) == 1 + 2 + 2


WORK = """
import os, signal, sys
from pathlib import Path
from coevo_gym.agents.advice.advisor import ModelAdvisor
from coevo_gym.agents.advice.advisor import Budgeted
from coevo_gym.core.spend import Caps, Meter
from coevo_gym.agents.advice.tape import Tape
from coevo_gym.agents.endpoint.openai_policy import EndpointConfig, OpenAIPolicy
from coevo_gym.store.answers import AnswerFile, AnswerTable
from tests import processes
from tests.agents.advice.kettle import load_prompt, make_inquiry

url, store, kill = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
budget = Meter(Caps(max_calls_per_round=100))
one_by_one = kill in ("received", "committed")
config = EndpointConfig(model="fake", base_url=url, max_concurrency=1 if one_by_one else 2)
kept = AnswerTable(store) if store.suffix == ".db" else AnswerFile(store)


class KilledAtTheThird:  # just before the answer is committed, or just after
    puts = 0

    def get(self, keys):
        return kept.get(keys)

    def put(self, answers):
        self.puts += 1
        if (self.puts, kill) == (3, "received"):
            os.kill(os.getpid(), signal.SIGKILL)
        kept.put(answers)
        if (self.puts, kill) == (3, "committed"):
            os.kill(os.getpid(), signal.SIGKILL)


class Killed(Budgeted):
    def generate(self, requests):
        answers = super().generate(requests)
        if kill == "after":  # the answers are there, and nobody has used them
            os.kill(os.getpid(), signal.SIGKILL)
        return answers


with OpenAIPolicy(config) as policy:
    tape = Tape(policy, KilledAtTheThird(), "fill", model="fake", scopes=budget.scopes)
    with budget.scope("round-1") as spent:
        answers = ModelAdvisor(Killed(tape, budget), at_once=None, load=load_prompt).ask(
            [make_inquiry(f"story {i % 6}") for i in range(12)]
        )
        print([answer.value.summary for answer in answers], spent()["kettle/summary"].tokens)
"""


ROOT = Path(__file__).parents[3]


def run(server: FakeOpenAI, store: Path, kill: str) -> tuple[str, int]:
    """Ask all questions in a process of its own; what it printed, and its exit code."""
    done = processes.run(["-c", WORK, server.url, str(store), kill], cwd=ROOT)
    return done.stdout, done.returncode


@pytest.mark.parametrize("name", ["run.db", "tape.jsonl"])
def test_a_run_killed_between_answer_and_use_repeats_no_request(
    server: FakeOpenAI, tmp_path: Path, name: str
) -> None:
    whole, _ = run(server, tmp_path / f"whole-{name}", "never")
    asked = Counter(json.dumps(body) for body in server.bodies)
    server.bodies.clear()
    assert run(server, tmp_path / name, "after") == ("", -signal.SIGKILL)
    assert len(server.bodies) == 12
    assert run(server, tmp_path / name, "never") == (whole, 0)
    assert Counter(json.dumps(body) for body in server.bodies) == asked


def test_a_run_killed_during_a_batch_repeats_only_the_request_in_flight(tmp_path: Path) -> None:
    hold = Hold(Say("late"))

    def answer(messages: Messages) -> Behaviour:
        return hold if len(fake.bodies) == 6 else words(messages, GOOD)

    with FakeOpenAI(key=KEY, answer=answer) as fake:
        store = tmp_path / "run.db"
        process = processes.Forked(["-c", WORK, fake.url, str(store), "never"], ROOT)
        fake.wait_until(lambda fake: len(fake.bodies) == 12 and fake.answered == 11)
        with sqlite3.connect(store, timeout=30) as db:  # what was answered is kept soon after
            while db.execute("SELECT count(*) FROM answers").fetchone()[0] < 11:
                assert process.poll() is None
        process.kill()
        process.wait(timeout=600)
        hold.until.set()
        output, code = run(fake, store, "never")
        assert output
        assert code == 0
        assert len(fake.bodies) == 12 + 1


@pytest.mark.parametrize("name", ["run.db", "tape.jsonl"])
@pytest.mark.parametrize(("kill", "again"), [("received", 1), ("committed", 0)])
def test_a_killed_run_repeats_only_the_request_without_a_committed_answer(
    server: FakeOpenAI, tmp_path: Path, name: str, kill: str, again: int
) -> None:
    """Answers are committed one by one, before the next question is sent."""
    whole, _ = run(server, tmp_path / f"whole-{name}", "never")
    asked = Counter(json.dumps(body) for body in server.bodies)
    server.bodies.clear()
    assert run(server, tmp_path / name, kill) == ("", -signal.SIGKILL)
    assert len(server.bodies) == server.answered - asked.total() == 3
    lost = Counter({json.dumps(server.bodies[2]): again})
    assert run(server, tmp_path / name, "never") == (whole, 0)
    assert Counter(map(json.dumps, server.bodies)) == asked + lost
