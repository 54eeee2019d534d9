"""A model as judge of answers to rows: asked once, and its faults are never scores."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import coevo_gym
from coevo_gym import from_rows
from coevo_gym.core.errors import ConfigError, EnvBackendError
from coevo_gym.envs.rows import RowsBenchmark
from coevo_gym.runs.evals import judge as judges
from coevo_gym.runs.evals.judge import ModelJudge
from tests.agents.fake_openai import FakeOpenAI, Refuse, Say

KEY = "a-key-of-the-user-0123456789"
ROWS = [{"prompt": f"Thank {name}.", "secret": "LEAKED"} for name in ("Ann", "Bob", "Cy")]


def polite(messages: tuple[tuple[str, str], ...]) -> Say:
    asked = messages[1][1]
    answer = asked.partition("The answer to judge:\n")[2]
    return Say(json.dumps({"yes": "thank" in answer.lower(), "reason": "It says so."}))


def forget() -> None:
    """Forget all verdicts, as another process has never known them."""
    for model in judges._JUDGE_MODELS.values():
        model.policy.close()  # type: ignore[attr-defined]
    judges._JUDGE_MODELS.clear()


@contextmanager
def serving(answer: Callable[[Any], Any]) -> Iterator[FakeOpenAI]:
    with FakeOpenAI(answer=answer) as endpoint:
        try:
            yield endpoint
        finally:
            forget()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOpenAI]:
    monkeypatch.setenv("A_JUDGES_KEY", KEY)
    with serving(polite) as endpoint:
        yield endpoint


def asked(server: FakeOpenAI, **more: Any) -> ModelJudge:
    settings = {
        "policy.endpoint.base_url": server.url,
        "policy.endpoint.api_key_env": "A_JUDGES_KEY",
        "policy.endpoint.max_attempts": 1,
        **more.pop("settings", {}),
    }
    return coevo_gym.judge("Is it polite?", model="openai:fake", settings=settings, **more)


def play(benchmark: RowsBenchmark, answer: str) -> float:
    env = benchmark.make()
    env.reset(options={"task": benchmark.tasks("train")[0]})
    return float(env.step(answer)[1])


def test_a_model_judges_each_answer_once(server: FakeOpenAI, tmp_path: Path) -> None:
    tape = tmp_path / "verdicts.jsonl"
    thanks = from_rows(ROWS, asked(server, tape=tape))
    assert [play(thanks, answer) for answer in ("Thank you!", "No.", "Thank you!")] == [1, 0, 1]
    assert len(server.bodies) == 2
    forget()  # as in another process
    assert [play(thanks, answer) for answer in ("Thank you!", "No.")] == [1, 0]
    assert len(server.bodies) == 2, "the tape answers"
    assert play(thanks, "Thanks, thank you.") == 1
    assert len(server.bodies) == 3
    everything = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "verdicts" not in everything
    assert KEY not in everything + repr(thanks.rules.verify)
    bodies = json.dumps(server.bodies)
    assert "LEAKED" not in bodies, "the model sees the fields that it is given"
    assert "Thank Ann." in bodies or "Thank Bob." in bodies or "Thank Cy." in bodies
    assert server.keys[0] == KEY


def test_concurrent_equal_questions_are_asked_once(server: FakeOpenAI) -> None:
    one, verdicts = asked(server), list[bool]()
    threads = [
        threading.Thread(target=lambda: verdicts.append(one(ROWS[0], "Thank you.")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (verdicts, len(server.bodies)) == ([True] * 8, 1)


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [
        (Refuse(500, "Down."), "500"),
        (Refuse(401, "No such key."), "401"),
        (Say("I would rather not say."), r"no verdict \(schema"),
    ],
)
def test_a_fault_of_the_judge_loses_the_episode(behaviour: Any, problem: str) -> None:
    with serving(lambda messages: behaviour) as server:
        thanks = from_rows(ROWS, asked(server, settings={"policy.endpoint.api_key_env": "none"}))
        with pytest.raises(EnvBackendError, match=problem) as raised:
            play(thanks, "Thank you!")
        assert "a verdict is False" not in str(raised.value), "it is no fault of the function"
        assert len(server.bodies) == (2 if "schema" in problem else 1), "repaired once"


def test_the_next_episode_after_a_fault_asks_the_judge_again() -> None:
    answers = iter([Refuse(500, "Down."), Say('{"yes": true}')])
    with serving(lambda messages: next(answers)) as server:
        thanks = from_rows(ROWS, asked(server, settings={"policy.endpoint.api_key_env": "none"}))
        with pytest.raises(EnvBackendError):
            play(thanks, "Thank you!")
        assert play(thanks, "Thank you!") == 1.0


def test_an_episode_over_the_token_cap_is_lost_also_in_the_next_process(
    server: FakeOpenAI, tmp_path: Path
) -> None:
    caps = {"policy.endpoint.max_tokens_total": 1500}
    thanks = from_rows(ROWS, asked(server, settings=caps, tape=tmp_path / "verdicts.jsonl"))
    assert play(thanks, "Thank you!") == 1.0
    left = iter(range(40))
    with pytest.raises(EnvBackendError, match="max_tokens_total"):
        any(play(thanks, f"Thank you {n} times!") < 1 for n in left)
    assert next(left) > 1
    n_requests = len(server.bodies)
    forget()
    with pytest.raises(EnvBackendError, match="max_tokens_total"):
        play(thanks, "Thank you very much!")
    assert len(server.bodies) == n_requests


def test_a_judge_can_be_pickled_and_its_fields_are_checked(server: FakeOpenAI) -> None:
    one = asked(server, fields=("prompt", "secret"))
    assert pickle.loads(pickle.dumps(one)) == one
    assert one(ROWS[0], "Thank you.")
    assert "LEAKED" in json.dumps(server.bodies[-1])
    with pytest.raises(ConfigError, match="'wanted', but the row has only prompt, secret"):
        asked(server, fields=("wanted",))(ROWS[0], "x")
    with pytest.raises(ConfigError, match="openai:MODEL"):
        coevo_gym.judge("Is it polite?", model="gpt-4.1-mini")
