"""Runs on rows: they grow, and continue in another process after a kill."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import coevo_gym
from coevo_gym import from_rows
from coevo_gym.core.benchmark import _SPECS
from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.envs.rows.source import import_path_of, load_function
from coevo_gym.runs.train import RunSummary
from coevo_gym.store import approvals
from coevo_gym.store.folder import RunFolder, read_json
from coevo_gym.store.reader import RunReader
from coevo_gym.view.export.write import write_report
from tests.runs.conftest import Child

MINE = """
def check(row, answer):
    return is_right(row, answer)

def is_right(row, answer):
    return answer == str(row["answer"])

def more(row, findings):
    n = int(row["prompt"].split()[2]) + 1_000 + findings.seed % 10_000
    yield {**row, "id": f"new-{n}", "prompt": f"What is {n} + 3?"}

def is_right_tool(row, text: str) -> bool:
    "Check an answer."
    return text == row["answer"]

class Twice:
    def reset(self, row):
        self.row, self.n = row, 0
        return f"Give the answer twice. {row['prompt']}"

    def step(self, text):
        self.n += text == self.row["answer"]
        over = text != self.row["answer"] or self.n == 2
        return f"You have given it {self.n} times.", float(self.n == 2), over

def reference(row):
    return [row["answer"]] * 2
"""
ROWS = [
    {"id": f"sum-{n}", "prompt": f"What is {n} + 3?", "answer": "b", "choices": ["a", "b", "c"]}
    for n in range(40)
]
SETS = {
    "seed": 3,
    "arms": ["coevolve"],
    "warmup.n_tasks": 0,
    "rollout.group_size": 4,
    "curriculum.growth.every_groups": 4,
    "curriculum.growth.drafts": 6,
    "loop.max_steps": 4,
    "evaluation.n_tasks": 4,
    "loop.groups_per_step": 4,
    "loop.evaluate_every_steps": 2,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(approvals, "_approved", set(approvals._approved))
    Path("mine.py").write_text(MINE)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def forget() -> None:
    """Forget all rows, as another process has never known them."""
    for name in [name for name in _SPECS if "envs.rows" in _SPECS[name].benchmark]:
        sys.modules.pop(_SPECS[name].benchmark.partition(":")[0], None)
        gym.registry.pop(_SPECS.pop(name).env_id, None)


Coevo = Callable[..., Child]


def test_a_killed_run_on_a_users_env_grows_and_ends_like_an_uninterrupted_one(
    child: Coevo, here: Path
) -> None:
    functions = {"env": "Twice", "propose": "more", "reference": "reference"}
    sets = {**SETS, **{f"benchmark.rows.{key}": f"mine.py:{f}" for key, f in functions.items()}}
    words = [f"--set={key}={','.join(v) if isinstance(v, list) else v}" for key, v in sets.items()]
    killed = child("train", "rows.jsonl", *words, module="coevo_gym")
    killed.wait_for("train coevolve: 2/4")
    killed.process.kill()
    assert killed.end() == -signal.SIGKILL
    other = here / "elsewhere"
    other.mkdir()
    again = Child(other, "resume", str(here / "runs" / "rows"), module="coevo_gym")
    assert again.end() == 0, again.text
    resumed = RunSummary.read(RunFolder(here / "runs" / "rows")).arms["coevolve"]
    rows = {"benchmark.rows.file": "rows.jsonl"}
    whole = coevo_gym.train({"name": "whole"}, sets={**sets, **rows}).arms["coevolve"]
    assert resumed["weights"] == whole["weights"]
    assert resumed["pool_size"] == whole["pool_size"]
    assert resumed["rounds"] >= 1
    with closing(gym.make("Rows-rows-v0")) as env:
        assert resumed["pool_size"] > len(env.unwrapped.tasks)  # type: ignore[attr-defined]


# In one process: what another process would know is forgotten in between.


def half_done(run: str) -> RunFolder:
    """A run of which only the end is missing, in a process that knows no rows."""
    folder = RunFolder(Path("runs", run))
    folder.summary.unlink()
    forget()
    return folder


def train(benchmark: str, **sets: Any) -> RunSummary:
    short = {"loop.max_steps": 1, **sets}
    return coevo_gym.train({"benchmark": benchmark, "name": "mine"}, sets={**SETS, **short})


def mine(place: str) -> Any:
    return load_function(f"mine.py:{place}")


def test_a_run_from_python_stores_the_paths_of_its_rows_and_functions(here: Path) -> None:
    from_rows("rows.jsonl", mine("check"), propose=mine("more"), name="sums", timeout_s=9)
    first = train("sums")
    rows = read_json(Path("runs/mine/manifest.json"))["config"]["benchmark"]["rows"]
    assert (rows["file"], rows["verify"]) == (str(here / "rows.jsonl"), f"{here}/mine.py:check")
    assert (rows["propose"], rows["timeout_s"]) == (f"{here}/mine.py:more", 9)
    half_done("mine")
    assert coevo_gym.resume("mine").arms == first.arms
    assert coevo_gym.resume("mine").table == first.table, "a finished run is only read"


@pytest.mark.slow
def test_worker_processes_change_no_results_and_tools_are_found_again(here: Path) -> None:
    from_rows("rows.jsonl", mine("check"), tools=[mine("is_right_tool")], name="sums")
    first = train("sums", **{"rollout.workers": 2})
    tools = read_json(Path("runs/mine/manifest.json"))["config"]["benchmark"]["rows"]["tools"]
    assert tools == [f"{here}/mine.py:is_right_tool"]
    half_done("mine")
    assert coevo_gym.resume("mine").arms == first.arms
    forget()
    from_rows("rows.jsonl", mine("check"), tools=[mine("is_right_tool")], name="sums")
    alone = coevo_gym.train(
        {"benchmark": "sums", "name": "alone"}, sets={**SETS, "loop.max_steps": 1}
    )
    assert alone.arms["coevolve"]["weights"] == first.arms["coevolve"]["weights"]


CHANGES: dict[str, tuple[Callable[[], object], str]] = {
    "a row": (
        lambda: Path("rows.jsonl").write_text(
            Path("rows.jsonl").read_text().replace('"answer": "b"', '"answer": "c"')
        ),
        "The training tasks differ from those that this run started with",
    ),
    "the function": (
        lambda: Path("mine.py").write_text(
            MINE.replace("return is_right(row, answer)", "return True")
        ),
        "The functions of sums differ from those that this run started with",
    ),
    "what the function calls": (
        lambda: Path("mine.py").write_text(MINE.replace('str(row["answer"])', '"a"')),
        "The functions of sums differ",
    ),
    "no file of rows": (Path("rows.jsonl").unlink, r"Cannot read .*rows\.jsonl"),
    "no file of functions": (Path("mine.py").unlink, r"mine\.py cannot be imported: No such file"),
    "no function": (
        lambda: Path("mine.py").write_text(MINE.replace("def check", "def chek")),
        r"mine\.py does not define 'check'. Did you mean 'chek'",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_run_whose_rows_or_functions_changed_is_refused(here: Path, what: str) -> None:
    change, message = CHANGES[what]
    from_rows("rows.jsonl", mine("check"), name="sums")
    train("sums")
    half_done("mine")
    change()
    with pytest.raises((ConfigError, StoreError), match=message) as refused:
        coevo_gym.resume("mine")
    assert "\n" not in str(refused.value)


def test_function_files_with_the_same_name_in_two_folders_do_not_mix(here: Path) -> None:
    other = here / "other"
    other.mkdir()
    (other / "mine.py").write_text(MINE.replace('str(row["answer"])', '"a"'))
    first, second = mine("check"), load_function("other/mine.py:check")
    assert load_function("mine.py:check") is first, "an unchanged file is run once"
    for function, right in ((first, "b"), (second, "a")):
        assert [function(ROWS[0], answer) for answer in "ab"] == [right == "a", right == "b"]
    assert import_path_of(first) == f"{here}/mine.py:check"
    assert import_path_of(second) == f"{other}/mine.py:check"
    Path("mine.py").write_text("ROWS = []")
    with pytest.raises(ConfigError, match=r"mine\.py:ROWS is not a function \(type list\)"):
        load_function("mine.py:ROWS")
    with pytest.raises(ConfigError, match=r"must have the form FILE\.py:FUNCTION, got 'mine\.py'"):
        load_function("mine.py")


def test_a_new_comment_in_the_function_file_does_not_prevent_a_resume(here: Path) -> None:
    from_rows("rows.jsonl", mine("check"), name="sums")
    first = train("sums")
    half_done("mine")
    Path("mine.py").write_text(f"# Mine.\n{MINE}")
    assert coevo_gym.resume("mine").arms == first.arms


def test_a_run_on_rows_from_memory_resumes_only_after_from_rows_is_called(here: Path) -> None:
    def make(right: str = "b") -> object:
        return from_rows(ROWS, lambda row, answer: answer == right, name="memory")

    make()
    first = train("memory", arms=["static"])
    folder = half_done("mine")
    for look in (
        RunReader(folder.database).check_integrity,
        lambda: write_report(folder, Path("r.html")),
    ):
        look()  # needs no function
    with pytest.raises(ConfigError, match=r"'memory' only exist in Python\. First call from_rows"):
        coevo_gym.resume("mine")
    forget()
    make()
    assert coevo_gym.resume("mine").arms == first.arms


def test_functions_in_a_settings_file_run_only_after_permission(here: Path) -> None:
    Path("their.toml").write_text(
        'extends = "quickstart"\n[benchmark.rows]\nfile = "rows.jsonl"\nverify = "mine.py:check"\n'
        "[warmup]\nn_tasks = 2\n[loop]\nmax_steps = 0\n"
    )
    Path("mine.py").write_text(f"{MINE}\nopen('ran', 'w').close()\n")
    with pytest.raises(ConfigError, match=r"run the Python file .*mine\.py"):
        coevo_gym.train("their.toml", sets={"arms": ["static"]})
    assert not Path("ran").exists()
    summary = coevo_gym.train("their.toml", sets={"arms": ["static"]}, yes=True)
    assert Path("ran").exists()
    assert (summary.name, summary.benchmark) == ("their", "rows")


def test_new_rows_are_not_counted_as_steps(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from_rows("rows.jsonl", mine("check"), propose=mine("more"), name="counted")
    sets = {**SETS, "loop.evaluate_every_steps": 0}
    coevo_gym.train({"benchmark": "counted", "name": "mine"}, sets=sets, progress=True)
    lines = re.findall(r"^train coevolve: \d/4.*$", capsys.readouterr().out, re.MULTILINE)
    assert [line[: len("train coevolve: 1/4, success")] for line in lines] == [
        f"train coevolve: {step}/4, success" for step in range(1, 5)
    ]
