"""``coevo show`` prints an episode in a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.view.collection import RunCollection
from coevo_gym.view.library import Library
from coevo_gym.view.reader import ViewReader
from coevo_gym.view.server import make_app
from tests.runs.conftest import Coevo
from tests.view.test_data_export import evaluated

EVALUATE = ("eval", "toy", "--policy=random", "--set=evaluation.n_tasks=6", "--name=toyed")


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    return tmp_path


def test_an_episode_is_printed_step_by_step_with_its_verdict(coevo: Coevo, tmp_path: Path) -> None:
    coevo(*EVALUATE)
    line, trajectory = next(EvalFolder(tmp_path / "evals" / "toyed").read_episodes())
    output = coevo("show", "toyed", line.id[:12])
    assert output.startswith(f"{line.name}: {'solved' if line.success else 'not solved'}")
    for number, step in enumerate(trajectory.steps, start=1):
        assert f"step {number}: action" in output
        assert step.action in output
    assert "Evaluation data (val split), for viewing only" in output
    assert f"score {line.score:.2f}, {line.end_reason}" in output
    assert coevo("show", "toyed", line.name) == output
    assert json.loads(coevo("show", "toyed", f"{line.id}.0", "--json"))["id"] == f"{line.id}.0"


def test_without_an_episode_the_stored_ones_are_listed_failed_ones_first(
    coevo: Coevo, tmp_path: Path
) -> None:
    coevo(*EVALUATE)
    lines = list(EvalFolder(tmp_path / "evals" / "toyed").read_results().values())
    episodes = json.loads(coevo("show", "toyed", "--json"))
    assert sorted(one["id"] for one in episodes) == sorted(f"{line.id}.0" for line in lines)
    assert [one["success"] for one in episodes] == sorted(line.success for line in lines)
    output = coevo("show", "toyed")
    assert all(line.name in output for line in lines)
    failed = sum(not line.success for line in lines)
    assert f"6 stored episodes, {6 - failed} solved." in output
    command = output.split("To print one: coevo ")[1].split()
    assert command == ["show", "toyed", episodes[0]["episode"]]
    assert "step 1: action" in coevo(*command)


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries on databases."""
    recorded, read = list[str](), ViewReader._rows

    def record(reader: ViewReader, query: str, *values: object) -> list[tuple[Any, ...]]:
        recorded.append(query)
        return read(reader, query, *values)

    monkeypatch.setattr(ViewReader, "_rows", record)
    return recorded


def test_a_list_of_more_episodes_reads_no_more_often(coevo: Coevo, queries: list[str]) -> None:
    """The kinds of failures are stored, so that no episode is read for its own."""
    counts = []
    for n in (4, 12):
        coevo("eval", "toy", "--policy=random", "-n", str(n), f"--name=of-{n}")
        queries.clear()
        failed = [one for one in list_episodes(coevo, f"of-{n}") if not one["success"]]
        assert failed
        assert all(one["failure"] for one in failed)
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_a_list_of_a_run_reads_no_episode(coevo: Coevo, finished: Path, queries: list[str]) -> None:
    failed = [one for one in list_episodes(coevo, str(finished)) if not one["success"]]
    assert failed
    assert all(one["failure"] for one in failed)
    assert queries
    assert not [query for query in queries if "SELECT body" in query]


def list_episodes(coevo: Coevo, name: str) -> list[dict[str, Any]]:
    episodes: list[dict[str, Any]] = json.loads(coevo("show", name, "--json"))
    return episodes


def test_episodes_of_the_same_task_are_named_by_the_task_and_their_number(coevo: Coevo) -> None:
    coevo("eval", "toy", "--policy=random", "-n", "2", "--samples=2", "--name=twice")
    names = [one["episode"] for one in list_episodes(coevo, "twice")]
    assert {name.rpartition(".")[2] for name in names} == {"0", "1"}
    for name in names:
        task = name.rpartition(".")[0]
        assert coevo("show", "twice", name).startswith(f"{task}: ")
        assert f"Choose one of: {task}.0, {task}.1." in coevo("show", "twice", task, code=2)


def test_the_kinds_of_failures_in_a_list_are_those_of_the_episodes(coevo: Coevo) -> None:
    coevo("eval", "webshop", "--policy=random", "-n", "8", "--name=shopped")
    for one in list_episodes(coevo, "shopped"):
        grade = json.loads(coevo("show", "shopped", one["id"], "--json"))["grade"]
        assert one["failure"] == (grade["failure"] or {"text": ""})["text"]


def test_the_system_message_and_answers_of_a_language_model_are_printed(
    coevo: Coevo, tmp_path: Path
) -> None:
    folder, server = evaluated(tmp_path, n=2, **{"policy.chat.style": "openai"})
    line, trajectory = next(folder.read_episodes())
    output = coevo("show", "asked", line.name)
    assert server.bodies[0]["messages"][0]["content"].splitlines()[0] in output
    assert "step 1 (turn 1): user message" in output
    assert "step 1 (turn 1): action" in output
    assert trajectory.transcript is not None
    tools = [tool for text in trajectory.transcript.tools for tool in json.loads(text)]
    assert tools
    assert all(f"{tool['function']['name']}(" in output for tool in tools)


GOOD = {"schema_version": "ATIF-v1.8", "agent": {"name": "other", "version": "1"}, "steps": []}
FILES = {
    "broken.json": '{"schema_version": "ATIF-v1.8", "steps": [',
    "wrong.json": json.dumps({**GOOD, "steps": [{"step_id": "one"}]}),
    "wrong.jsonl": json.dumps({**GOOD, "steps": [{"step_id": 1}]}) + "\n",
    "other.json": '{"a": 1}',
    "data.csv": "a,b\n",
}
MISTAKES: dict[tuple[str, ...], tuple[str, ...]] = {
    # what was typed: what happened, with which value, and what to do
    ("show", "toyd", "x"): ("There is no run or evaluation 'toyd'", "Did you mean 'toyed'?"),
    ("show", "toyed", "nosuch"): ("there is no episode 'nosuch'", "Choose one of: toy/"),
    ("show", "toyed", "toy/blue-white-rad"): (
        "no episode 'toy/blue-white-rad'",
        "Did you mean 'toy/",
    ),
    ("show", "toyed", ""): ("6 episodes match ''", "Choose one of:"),
    ("show", "toyed", "--reveal"): ("--reveal prints", "Name the episode"),
    ("show", "toyed", "x", "--revael"): ("No such option: --revael", "--reveal"),
    ("show", "broken.json", "x"): ("broken.json is a file", "coevo view broken.json"),
    ("view", "toyed", "--reveal", "--export", "all.html"): (
        "so all.html cannot contain it",
        "Leave out --export",
    ),
    ("view", "toyed", "--with-episodes"): ("--with-episodes only affects", "needs --export"),
    ("view", "broken.json"): ("broken.json is not an ATIF trajectory: Invalid", "name of a run"),
    ("view", "wrong.json"): ("wrong.json is not", "steps.0.step_id", "name of a run"),
    ("view", "wrong.jsonl"): ("wrong.jsonl, line 1 is not", "steps.0.", "name of a run"),
    ("view", "other.json"): ("other.json is not", "schema_version", "name of a run"),
    ("view", "data.csv"): ("data.csv is not a file of ATIF", "coevo runs list"),
    ("view", "empty"): ("There is no run or evaluation 'empty'", "In evals/: toyed"),
    ("view", "brokn.json"): ("There is no file 'brokn.json'. Did you mean 'broken.json'?",),
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_is_named_with_its_value_and_the_way_out(
    coevo: Coevo, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    pytest.importorskip("atif")
    coevo(*EVALUATE)
    (tmp_path / "empty").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    output = coevo(*arguments, code=2)
    for text in MISTAKES[arguments]:
        assert text in output
    assert "Traceback" not in output
    assert not (tmp_path / "all.html").exists()


def test_pages_with_verdicts_answer_this_machine_only(coevo: Coevo, tmp_path: Path) -> None:
    """Also if the port is forwarded to another machine, or another site asks for the pages."""
    coevo(*EVALUATE)
    app = make_app(RunCollection(Library([str(tmp_path / "evals" / "toyed")]), "page"))
    with TestClient(app, base_url="http://evaluations.example.org") as client:
        refused = client.get("/api/evals/toyed")
        assert refused.status_code == 403
        assert "only serves this machine: open http://127.0.0.1" in refused.text
        assert client.get("/api/evals/toyed", headers={"host": "127.0.0.1"}).status_code == 200
