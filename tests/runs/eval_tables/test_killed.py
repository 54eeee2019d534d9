"""Two models on two benchmarks from one file, killed three times: nothing is asked twice."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.folder import read_json
from tests.agents.fake_openai import PATIENCE_S, FakeOpenAI, Hold, Messages, Say
from tests.runs.conftest import Child
from tests.runs.test_paid_episodes import playing
from tests.runs.test_spending import searching

N_TASKS = {"webshop": 3, "bfcl": 4}
CELLS = ("big-webshop-0", "big-bfcl-0", "small-webshop-0", "small-bfcl-0")


class Gate:
    """The answers of two servers, of which only the first ``limit`` are given until it is opened.

    Attributes:
        limit: number of requests that are answered, over both servers.
        held: the requests that came later, and that were never answered.
    """

    def __init__(self) -> None:
        self.limit = 10**9
        self.n = 0
        self.held: list[tuple[str, Messages]] = []
        self.until, self.holds = threading.Event(), threading.Event()
        self._lock = threading.Lock()

    def answer(self, model: str) -> Callable[[Messages], Say | Hold]:
        def behaviour(messages: Messages) -> Say | Hold:
            shop = any("search[" in text for role, text in messages if role == "system")
            say = searching(messages) if shop else playing(messages)
            with self._lock:
                if self.n < self.limit:
                    self.n += 1
                    return say
                self.held.append((model, messages))
                self.holds.set()
                return Hold(say, self.until)

        return behaviour

    def release(self) -> None:
        """Let the held requests end, whose client is gone, and hold others from now on."""
        self.until.set()
        self.until, self.holds = threading.Event(), threading.Event()


class Servers:
    """Both models, each behind a server of its own."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.models = {
            name: FakeOpenAI(name, answer=self.gate.answer(name)) for name in ("big", "small")
        }

    def __enter__(self) -> Servers:
        for server in self.models.values():
            server.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.gate.release()
        for server in self.models.values():
            server.__exit__(*error)

    @property
    def asked(self) -> Counter[str]:
        """Count the requests of each model."""
        return Counter(
            json.dumps(body, sort_keys=True)
            for server in self.models.values()
            for body in server.bodies
        )

    def write_file(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        models = "".join(
            f"""
[[models]]
name = "{name}"
policy = "openai:{name}"
set = {{ "policy.endpoint.base_url" = "{server.url}" }}
"""
            for name, server in self.models.items()
        )
        benchmarks = "".join(
            f"""
[[benchmarks]]
name = "{name}"
benchmark = "{name}"
n_tasks = {n}
"""
            for name, n in N_TASKS.items()
        )
        (folder / "both.toml").write_text(
            f"""
title = "Two models on two benchmarks"
[settings]
"policy.endpoint.api_key_env" = "none"
"policy.endpoint.max_concurrency" = 3
"benchmark.max_steps" = 6
{models}{benchmarks}"""
        )


def messages_of(request: str) -> tuple[str, Messages]:
    """The model and the messages of a request, as JSON."""
    body = json.loads(request)
    return body["model"], tuple((one["role"], one["content"]) for one in body["messages"])


def start(folder: Path) -> Child:
    return Child(folder, "eval", "both.toml", "--yes", module="tests.runs.records_answers")


def results(folder: Path) -> dict[str, list[str]]:
    """The results of each cell, apart from the order in which its episodes ended."""
    cells = {name: EvalFolder(folder / "evals" / "both" / name) for name in CELLS}
    return {name: sorted(cell.results.read_text().splitlines()) for name, cell in cells.items()}


def table(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = read_json(folder / "evals" / "both" / "table.json")
    return content


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Counter[str]]:
    """The folder of a table that nothing disturbed, and what the models were asked for it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with Servers() as servers:
        servers.write_file(folder)
        done = start(folder)
        assert done.end() == 0, done.text
        assert not any(server.problems for server in servers.models.values())
        asked = servers.asked
    return folder, asked


@pytest.mark.parametrize(
    "shares", [(0.1, 0.4, 0.9), pytest.param((0.3, 0.55, 0.75), marks=pytest.mark.slow)]
)
def test_a_table_that_is_killed_three_times_asks_nothing_twice(
    shares: tuple[float, ...], undisturbed: tuple[Path, Counter[str]], tmp_path: Path
) -> None:
    whole, asked = undisturbed
    total = sum(asked.values())
    with Servers() as servers:
        servers.write_file(tmp_path)
        gate, recorded = servers.gate, 0
        for share in shares:
            gate.limit = int(share * total)
            running = start(tmp_path)
            while recorded < gate.limit:
                running.wait_for("recorded")
                recorded += 1
            assert gate.holds.wait(PATIENCE_S)
            running.process.kill()
            running.end()
            gate.release()
        gate.limit = 10**9
        last = start(tmp_path)
        assert last.end() == 0, last.text
        assert gate.n == total
        assert len(gate.held) >= len(shares)
        # What was never answered when the process was killed is asked again, and nothing else.
        assert Counter(map(messages_of, (servers.asked - asked).elements())) == Counter(gate.held)
        assert not asked - servers.asked
        for server in servers.models.values():  # a killed client may not have sent a whole request
            assert not [one for one in server.problems if "JSONDecodeError" not in one]
        billed = sum(
            server.prompt_tokens + server.completion_tokens for server in servers.models.values()
        )
    assert results(tmp_path) == results(whole)
    assert table(tmp_path) == table(whole)
    assert (tmp_path / "evals/both/table.md").read_text() == (
        whole / "evals/both/table.md"
    ).read_text()
    assert not list(tmp_path.glob("evals/both/*/answers.jsonl"))
    costs = [read_json(EvalFolder(tmp_path / "evals" / "both" / name).endpoint) for name in CELLS]
    assert sum(counts["capped_tokens"] for counts in costs) >= billed
