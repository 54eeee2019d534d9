"""``coevo play`` as a user starts it: pages, a score, a demonstration."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from coevo_gym import cli, tasks
from coevo_gym.core.task_file import read_tasks

TASK = tasks("webshop", "train")[0]


def test_pages_are_served_until_ctrl_c(tmp_path: Path) -> None:
    httpx = pytest.importorskip("httpx")
    command = ("play", "webshop", "--web", "--no-browser", "--task", TASK.name)
    process = subprocess.Popen(
        [sys.executable, "-m", "coevo_gym.cli", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "http://" in line)
        url = "http://" + line.partition("http://")[2].strip()
        assert url.startswith("http://127.0.0.1:")
        page = httpx.get(url)
        token = page.text.partition('name="play-token" content="')[2].partition('"')[0]
        about = httpx.get(f"{url}api/play", headers={"X-Play-Token": token}).json()
        assert about["first"]["id"] == TASK.id
        assert httpx.get(f"{url}api/play").status_code == 403
        begun = httpx.post(f"{url}api/play/games", json={}, headers={"X-Play-Token": token})
        assert begun.status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()


Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in an empty folder; gives what it printed, and of JSON that alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("COEVO_CFG__EVALUATION__N_TASKS", "2")

    def run(*arguments: str, typed: Sequence[str] = (), code: int = 0) -> str:
        lines = iter(typed)
        monkeypatch.setattr(sys, "argv", ["coevo", *arguments])
        monkeypatch.setattr("builtins.input", lambda *_: next(lines))
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        done = capsys.readouterr()
        assert exit_.value.code == code, done.out + done.err
        return done.out if "--json" in arguments else done.out + done.err

    return run


def test_the_error_about_the_missing_extra_names_what_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    text = run("play", "webshop", "--web", code=3)
    assert text.count("`coevo play --web` needs extra packages") == 1
    assert "pip install" in text
    assert "[serve]" in text


def test_a_solved_episode_from_the_terminal_is_saved_as_a_demonstration(run: Run) -> None:
    keep = ("play", "webshop", "--task", TASK.name, "--keep", "a/b.jsonl")
    assert "Saved as a demonstration in a/b.jsonl" in run(*keep, typed=TASK.solution)
    assert read_tasks(Path("a/b.jsonl"))[0].solution == TASK.solution
    assert "Only an episode that has solved" in run(*keep, typed=["search[shirt]"] * 15)
    assert len(read_tasks(Path("a/b.jsonl"))) == 1


def test_episodes_from_the_terminal_make_up_a_comparable_score(run: Run) -> None:
    first, second = sorted(tasks("webshop", "val"), key=lambda task: task.id)[:2]
    score = ("play", "webshop", "--split", "val", "--name", "me", "--keep", "c.jsonl")
    text = run(*score, typed=first.solution)
    assert "1 of 1 solved, 1 tasks to go" in text
    assert "never become demonstrations" in text
    assert not Path("c.jsonl").exists()
    run(*score, typed=["search[shirt]", "q"])
    assert "2 of 2 solved, 0 tasks to go" in run(*score, typed=second.solution)
    assert "have been played" in run(*score, code=2)
    assert "abandoned" in Path("evals/me/lost.jsonl").read_text()
    run("eval", "webshop", "--policy", "random", "--name", "floor")
    comparison = json.loads(run("compare", "floor", "me", "--json"))
    assert comparison["tasks"] == 2
    assert comparison["success_b"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("webshop", "--name", "me", "--seed", "1"), "played in a fixed order"),
        (("webshop", "--name", "../me"), "takes letters, digits"),
        (("webshop", "--split", "tset"), "'tset' is not one of 'train', 'val', 'test'"),
        ((), "No benchmark given"),
    ],
)
def test_invalid_arguments_are_refused_with_the_reason(
    arguments: tuple[str, ...], why: str, run: Run
) -> None:
    assert why in run("play", *arguments, code=2)
