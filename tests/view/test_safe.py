"""What is never shown: keys, wherever they were planted, and the ground truth of held-out tasks."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import EndReason, EvalTrajectory, Group, Step, Trajectory
from coevo_gym.store.database import RunStore
from coevo_gym.store.folder import RunFolder, read_json, write_json
from coevo_gym.store.reader import Evaluated
from coevo_gym.view.api import json_response
from coevo_gym.view.collection import RunCollection
from coevo_gym.view.export.write import export_pages
from coevo_gym.view.library import Library
from coevo_gym.view.safe import Censor
from tests.view.exports import read_data
from tests.view.sample import EVAL, RUN

PLANTED = {
    "of the environment": 'correct-"horse"-battery',
    "of OpenAI": "sk-proj-abcdefghijklmnop0123456789",
    "of Hugging Face": "hf_abcdefghijklmnopqrstuv",
    "of GitHub": "ghp_abcdefghijklmnopqrstuvwxyz012345",
    "in a header": "dGhpcy1pcy1hLXNlY3JldA",
    "in an address": "tr0ub4dor",
    "as a parameter": "p4r4m3t3r",
    "in settings": "plain-words-1",
    "nested in settings": "plain-words-2",
}
SAID = (
    f"export KEY={PLANTED['of the environment']} {PLANTED['of OpenAI']} {PLANTED['of GitHub']} "
    f"{PLANTED['of Hugging Face']} Authorization: Bearer {PLANTED['in a header']} "
    f"https://me:{PLANTED['in an address']}@host/v1?api_key={PLANTED['as a parameter']}&n=1"
)


@pytest.fixture
def planted(sample_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the small run and its evaluation, with keys wherever there could be some."""
    for part in ("runs", "evals"):
        shutil.copytree(sample_folder / part, tmp_path / part)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOME_SERVICE_TOKEN", PLANTED["of the environment"])
    run = RunFolder(tmp_path / "runs" / RUN)
    manifest = read_json(run.manifest)
    manifest["endpoint_headers"] = {
        "Authorization": PLANTED["in settings"],
        "credentials": {"name": "me", "parts": [PLANTED["nested in settings"]]},
    }
    manifest["model"] = SAID
    write_json(run.manifest, manifest)
    config = read_json(tmp_path / "evals" / EVAL / "config.json")
    config |= {"api_key": PLANTED["in settings"], "source": SAID}
    write_json(tmp_path / "evals" / EVAL / "config.json", config)
    task = _task("train")
    trajectory = Trajectory(
        task_id=task.id,
        steps=(Step(SAID, SAID, SAID, said=SAID, extras={"log": SAID}),),
        score=0.0,
        success=False,
        end_reason=EndReason.MAX_STEPS,
        report={"tests": SAID},
        last_observation=SAID,
    )
    with closing(RunStore(run.database, record="all")) as store:
        store.add_groups("static", 5, [Group("group-keys", task, 1, (trajectory,))], [])
    return tmp_path


def _task(split: str) -> Task:
    return get_benchmark("webshop").tasks(Split(split))[0]


def paths(collection: RunCollection) -> Iterator[str]:
    yield from ("runs", "evals", f"runs/{RUN}", f"evals/{EVAL}", f"evals/{EVAL}/episodes")
    at = f"runs/{RUN}"
    yield from (f"{at}/trajectories", f"{at}/tasks", f"{at}/drafts", f"{at}/arms/static/steps")
    yield f"{at}/trajectories/static.group-keys.0"
    for row in json.loads(json_response(collection, f"evals/{EVAL}/episodes"))["rows"]:
        yield f"evals/{EVAL}/episodes/{row['id']}"


def test_no_answer_contains_a_secret_key(planted: Path) -> None:
    collection = RunCollection(Library())
    for path in paths(collection):
        text = json_response(collection, path).decode()
        json.loads(text)
        keys = {json.dumps(key)[1:-1]: where for where, key in PLANTED.items()}
        assert not [where for key, where in keys.items() if key in text], path
    trajectory = json.loads(
        json_response(collection, f"runs/{RUN}/trajectories/static.group-keys.0")
    )
    assert trajectory["steps"][0]["said"].count("<redacted>") == 7
    assert trajectory["steps"][0]["said"].endswith("&n=1")


@pytest.mark.parametrize(
    ("target", "names"),
    [("all.html", (RUN, f"evals/{EVAL}")), ("all", (f"evals/{EVAL}",))],
    ids=["file", "folder"],
)
def test_no_export_contains_a_secret_key(
    planted: Path, target: str, names: tuple[str, ...]
) -> None:
    export_pages(Library(names), planted / target, episodes=True)
    path = planted / target
    files = [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file()]
    assert files
    for file in files:
        has_data = file == path or file.parent.name == "data"
        text = json.dumps(read_data(file)) if has_data else file.read_text()
        leaks = [where for where, key in PLANTED.items() if json.dumps(key)[1:-1] in text]
        assert not leaks, file


def test_the_ground_truth_of_held_out_tasks_is_withheld(planted: Path, tmp_path: Path) -> None:
    """This includes a test task that should never have been stored in a run."""
    task = _task("test")
    run = RunFolder(planted / "runs" / RUN)
    with closing(sqlite3.connect(run.database)) as db:
        row = (task.id, task.name, task.origin, "test", task.subset, task.scenario)
        body = zlib.compress(task.to_json().encode())
        db.execute("INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)", (*row, "x", body))
        db.commit()
    collection = RunCollection(Library())
    detail = json.loads(json_response(collection, f"runs/{RUN}/tasks/{task.id}"))
    assert (detail["solution"], detail["verifier"], detail["world"]) == (None, None, None)
    assert "this is a test task" in detail["withheld"]
    trained = json.loads(json_response(collection, f"runs/{RUN}/tasks", "origin=evolved"))["rows"][
        0
    ]
    assert json.loads(json_response(collection, f"runs/{RUN}/tasks/{trained['id']}"))["verifier"]


def test_grader_details_of_a_held_out_task_are_withheld(planted: Path) -> None:
    folder = planted / "evals" / EVAL
    line = json.loads((folder / "results.jsonl").read_text().splitlines()[0])
    report = {
        "share": 0.5,
        "tests": [{"name": "THE-ANSWER", "passed": False}],
        "turns": [{"reached": True, "reference": False, "outcome": "THE-OUTCOME"}],
        "paid": 49.99,
    }
    trajectory = EvalTrajectory(
        task_id=line["id"],
        steps=(Step("a page", "a page", "click[buy now]", extras={"price": "THE-PRICE"}),),
        score=0.5,
        success=False,
        end_reason=EndReason.FAILED,
        report=report,
        last_observation="over",
    )
    ended = Evaluated(line["id"], False, 0.5, "failed", 1, line["sample"])
    with closing(RunStore(folder / "trajectories.db")) as store:
        store.add_eval_episode("coevolve", 0, ended, trajectory)
    text = json_response(
        RunCollection(Library()), f"evals/{EVAL}/episodes/{line['id']}.{line['sample']}"
    ).decode()
    detail = json.loads(text)
    assert detail["grade"]["report"] == {"share": 0.5}
    assert "Withheld" in detail["grade"]["withheld"]
    assert "must not be used in training" in detail["notice"]
    assert "THE-" not in text
    assert detail["steps"][0]["extras"] == {}


def test_redaction_changes_only_secrets_in_json() -> None:
    value: dict[str, Any] = {"a": ["ü\n\"'", 1.5, None, "sketch", "task-1", "?page=2&q=key"]}
    text = json.dumps(value)
    assert Censor().redact(text) == text
    assert Censor(["short"]).redact('"short"') == '"short"'  # too short to be told from a word
    assert json.loads(Censor(['a"quoted\\value']).redact(json.dumps({"x": 'a"quoted\\value'}))) == {
        "x": "<redacted>"
    }
