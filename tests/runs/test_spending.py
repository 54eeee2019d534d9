"""Caps on an endpoint hold over all starts, however these end, and what was paid is told."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from coevo_gym.core.seams import Message, Prompt, Sampling
from coevo_gym.methods.kit import EXPLORE
from coevo_gym.runs.assembly import Assembly
from coevo_gym.runs.config import load_config
from coevo_gym.runs.evolving.evolver_models import Models
from coevo_gym.store.folder import read_json
from coevo_gym.store.progress_file import read_progress
from tests.agents.fake_openai import FakeOpenAI, Messages, Say
from tests.runs.conftest import Child, Coevo

NewChild = Callable[..., Child]
CAP = 60_000
USD_PER_TOKEN = 1e-5


def searching(messages: Messages) -> Say:
    """Searches all the time, and bills a token for 4 characters."""
    text = "<action>search[mug]</action>"
    if "You tried to do a task" in messages[0][1]:
        text = json.dumps({"mistake": "I searched again.", "plan": "Buy what is named."})
    length = sum(len(content) for _, content in messages)
    return Say(text, usage=(length // 4, len(text) // 4))


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(answer=searching) as endpoint:
        yield endpoint


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    return tmp_path


def command(server: FakeOpenAI, *more: str) -> list[str]:
    settings = {
        "policy.endpoint.base_url": server.url,
        "policy.endpoint.api_key_env": "none",
        "policy.endpoint.max_concurrency": 2,
        "policy.endpoint.usd_per_million_prompt_tokens": 1e6 * USD_PER_TOKEN,
        "policy.endpoint.usd_per_million_completion_tokens": 1e6 * USD_PER_TOKEN,
        "benchmark.max_steps": 6,
        "evaluation.n_tasks": 20,
    }
    sets = [f"--set={key}={value}" for key, value in settings.items()]
    return ["eval", "webshop", "--policy=openai:fake", "--name=mine", "--yes", *sets, *more]


def billed(server: FakeOpenAI) -> int:
    return server.prompt_tokens + server.completion_tokens


@pytest.mark.parametrize(
    ("cap", "trials"),
    [
        (f"max_tokens_total={CAP}", ()),
        (f"max_usd_total={CAP * USD_PER_TOKEN}", ("--trials=2", "--no-cut")),
    ],
)
def test_three_starts_of_an_evaluation_together_stay_below_the_cap(
    server: FakeOpenAI, child: NewChild, tmp_path: Path, cap: str, trials: tuple[str, ...]
) -> None:
    arguments = command(server, f"--set=policy.endpoint.{cap}", *trials)
    for n_answered in (6, 12):
        killed = child(*arguments)
        server.wait_until(lambda server, n=n_answered: server.answered >= n)  # type: ignore[misc]
        killed.process.send_signal(signal.SIGKILL)
        killed.end()
    before = billed(server)
    last = child(*arguments)
    assert last.end() == 1
    assert f"of {cap.split('=')[0]}=" in last.text
    assert before < billed(server) <= CAP
    usage = read_json(tmp_path / "evals" / "mine" / "endpoint.json")
    assert billed(server) <= usage["capped_tokens"] <= CAP
    progress = read_progress(tmp_path / "evals" / "mine")
    assert progress is not None
    assert progress.cost.tokens == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_summary_contains_the_tokens_and_cost_of_its_episodes(
    server: FakeOpenAI, coevo: Coevo
) -> None:
    summary = json.loads(coevo(*command(server, "--set=evaluation.n_tasks=3"), "--json"))
    assert summary["tokens"] == billed(server) > 0
    assert summary["usd"] == pytest.approx(billed(server) * USD_PER_TOKEN)
    assert read_json(Path(summary["folder"]) / "summary.json")["tokens"] == summary["tokens"]
    usage = read_json(Path(summary["folder"]) / "endpoint.json")
    assert usage["capped_tokens"] == billed(server)


def test_a_damaged_usage_file_is_an_error(server: FakeOpenAI, coevo: Coevo) -> None:
    arguments = command(server, "--set=evaluation.n_tasks=3")
    coevo(*arguments)
    folder = Path("evals/mine")
    (folder / "results.jsonl").unlink()
    (folder / "endpoint.json").write_text('{"requests": "many"}')
    assert "endpoint.json, which counts the requests and their cost, is damaged" in coevo(
        *arguments, code=1
    )


def a_prompt(text: str) -> Prompt:
    return Prompt((Message("user", text),), Sampling(0.0, 16))


@pytest.mark.parametrize("capped", ["advisor", "explorer.model.endpoint"])
def test_caps_on_rounds_hold_over_killed_starts(
    server: FakeOpenAI, tmp_path: Path, capped: str
) -> None:
    sets = {
        "explorer.kind": "model",
        "explorer.model.kind": "openai",
        "explorer.model.endpoint.model": "fake",
        "explorer.model.endpoint.base_url": server.url,
        "tape.mode": "off",
        f"{capped}.max_tokens_total": 1_000,
    }
    config = load_config("quickstart", sets=sets, environ={}).config

    def started() -> Models:
        return Assembly(config, database=tmp_path / "run.db").models

    n_refused = 0
    for _ in range(8):  # none of them saves a checkpoint
        with closing(started()) as models:
            asked = models.explorer("", config.explorer, config.advisor)
            assert asked is not None
            agent = asked.agent(EXPLORE)
            (answer,) = agent.policy.generate([a_prompt("word " * 100)])
            n_refused += not answer.text
    assert n_refused == 8 - server.answered > 0
    assert billed(server) <= 1_000
