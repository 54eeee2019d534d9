"""A run that is killed between an answer and its use goes on with the answer."""

from __future__ import annotations

import json
import os
import signal
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from coevo_gym.core.seams import Message, Prompt
from tests import processes
from tests.agents.fake_openai import FakeOpenAI, Messages, Say
from tests.curricula.explore.presser import Presser

WORK = """
import os, signal, sys
from pathlib import Path
from coevo_gym.agents.endpoint.openai_policy import EndpointConfig, OpenAIPolicy
from coevo_gym.store.answers import AnswerTable
from tests.curricula.explore.presser import TOY_PROMPT
from tests.curricula.explore.test_model_explorer import content, guided
from tests.tapes.pipeline import pipeline
from tests.toy import register

register()
url, store, kill_at = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])


class Killed(OpenAIPolicy):
    asked = 0

    def generate_each(self, requests, tell):
        answers = super().generate_each(requests, tell)
        Killed.asked += 1
        if Killed.asked == kill_at:  # the answers are kept, and nobody has used them
            os.kill(os.getpid(), signal.SIGKILL)
        return answers


with Killed(EndpointConfig(model="fake", base_url=url)) as policy:
    made = pipeline("toy", policy, AnswerTable(store), "fill", prompt=TOY_PROMPT, concurrency=2)
    result = made.run(guided())
    print(*(task.id for task in result.accepted))
    print(*(verdict.draft_id for verdict in result.verdicts))
    print(sum(usage.tokens for usage in result.usage.values()))
"""


def answer(messages: Messages) -> Say:
    """What the toy's model says, by what it is asked alone."""
    model = Presser()
    model.rng = np.random.default_rng(zlib.crc32(repr(messages).encode()))
    prompt = Prompt(tuple(Message(role, text) for role, text in messages))
    (completion,) = model.policy().generate([prompt])
    return Say(completion.text, usage=(len(messages), len(completion.text)))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOpenAI]:
    for name in [name for name in os.environ if name.startswith("OPENAI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with FakeOpenAI(answer=answer) as fake:
        yield fake
    assert not fake.problems


def run(server: FakeOpenAI, store: Path, kill_at: int = 0) -> tuple[str, int]:
    command = ["-c", WORK, server.url, str(store), str(kill_at)]
    done = processes.run(command, cwd=Path(__file__).parents[3])
    return done.stdout, done.returncode


def test_a_killed_round_resumes_with_the_same_tasks_and_no_repeated_request(
    server: FakeOpenAI, tmp_path: Path
) -> None:
    whole, _ = run(server, tmp_path / "whole.db")
    assert whole.splitlines()[0]
    asked = Counter(json.dumps(body) for body in server.bodies)
    server.bodies.clear()
    for kill_at in (1, 3, 4):  # a summary, a walk, and what came of walks
        assert run(server, tmp_path / "run.db", kill_at) == ("", -signal.SIGKILL)
    assert 0 < len(server.bodies) < asked.total()
    assert run(server, tmp_path / "run.db") == (whole, 0)
    assert Counter(json.dumps(body) for body in server.bodies) == asked
