"""``coevo export`` as a user runs it, and the places that refuse exported held-out episodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.core.advice import AdviceOrigin
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import CoevoError, SplitLeakError
from coevo_gym.core.inquiry import Inquiry
from coevo_gym.core.task_file import read_tasks
from coevo_gym.core.trajectory import Cue
from coevo_gym.core.trajectory_json import trajectory_from_json
from coevo_gym.envs.rows import from_rows
from coevo_gym.episodes.episode import clean_cue
from coevo_gym.methods.agentevolver.experience import Experience
from coevo_gym.runs.tasks.demonstrations import read_demonstrations
from coevo_gym.runs.tasks.importing import Importer
from coevo_gym.view.data.episodes import EpisodeFilter
from coevo_gym.view.data.write import export_episodes
from tests.runs.conftest import Coevo

EVALUATE = ("eval", "toy", "--policy=random", "--set=evaluation.n_tasks=6", "--name=toyed")


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def held_out(coevo: Coevo, tmp_path: Path) -> Path:
    """A folder of exported episodes on validation tasks, in two formats."""
    coevo(*EVALUATE)
    for format in ("messages", "jsonl"):
        coevo("export", "toyed", f"--format={format}", "--split=val")
    return tmp_path


def rows(folder: Path, format: str) -> list[dict[str, Any]]:
    lines = (folder / f"toyed-{format}" / "val.jsonl").read_text().split("\n")
    return [json.loads(line) for line in lines if line]


@pytest.mark.parametrize("format", ["messages", "jsonl"])
def test_exported_held_out_episodes_are_refused_everywhere(held_out: Path, format: str) -> None:
    file = held_out / f"toyed-{format}" / "val.jsonl"
    row = rows(held_out, format)[0]
    assert (row["split"], row["held_out"]) == ("val", True)
    refused = pytest.raises(SplitLeakError, match="exported episode of a val task, so it cannot")
    with refused:
        trajectory_from_json(row)
    with refused:
        from_rows([row], lambda row, answer: True)
    with refused:
        from_rows(file, lambda row, answer: True)
    with refused:
        read_tasks(file)
    with refused:
        read_demonstrations(file, get_benchmark("toy"))
    for line in Importer().judge(file):
        assert "exported episode of a val task" in line.problem
        assert line.task is None
    with refused:
        Inquiry("coevolve/summary", dict, {"episode": row})  # type: ignore[type-var]
    with refused:
        Inquiry("coevolve/summary", dict, {"text": json.dumps(row)})  # type: ignore[type-var]
    with refused:
        AdviceOrigin(texts={"lesson": json.dumps(row)}, task_id="t", group_id="g", index=0)
    with refused:
        Experience(when_to_use="always", content=json.dumps(row), task_id="t", source="rule")
    with refused:
        clean_cue(Cue(json.dumps(row)))


def test_the_command_prints_its_files_and_refuses_to_replace_them(
    coevo: Coevo, tmp_path: Path
) -> None:
    coevo(*EVALUATE)
    output = coevo("export", "toyed", "--split", "val", "--failure", "--out", "failed")
    assert "failed/val.jsonl" in output.splitlines()
    assert "failed/README.md" in output.splitlines()
    lines = (tmp_path / "failed" / "val.jsonl").read_text().split("\n")[:-1]
    assert lines
    assert not any(json.loads(line)["success"] for line in lines)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), 2, "Missing argument 'NAME'"),
        (("toyd",), 2, "Did you mean 'toyed'"),
        (("evals/none",), 2, "There is no run or evaluation 'evals/none'"),
        (("toyed",), 2, "no episodes of train tasks, but 6 val. Pass --split val"),
        (("toyed", "--split=test"), 2, "no episodes of test tasks, but 6 val"),
        (("toyed", "--split=valid"), 2, "'valid' is not one of 'train', 'val'"),
        (("toyed", "--format=csv"), 2, "'csv' is not one of 'messages', 'atif'"),
        (("toyed", "--split=val", "--arm=rnadom"), 2, "Did you mean 'random'"),
        (("toyed", "--split=val", "--task=toy/none"), 2, "no episodes of the task 'toy/none'"),
        (("toyed", "--split=val", "--out=."), 2, "already exists. Choose another --out"),
        (("toyed", "--split=val", "--out=.", "--overwrite"), 2, "is not an export of episodes"),
        (
            ("toyed", "--split=val", "--out=evals/toyed/results.jsonl/x"),
            2,
            "Cannot create the folder evals/toyed/results.jsonl/x: ",
        ),
        (("toyed", "--split=val", "--format=atif", "-missing"), 3, "need the package atif"),
        (("toyed", "--split=val", "--format=parquet", "-missing"), 3, "need pyarrow"),
    ],
)
def test_a_mistake_is_an_error_that_says_what_to_do_and_writes_nothing(
    coevo: Coevo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    text: str,
) -> None:
    coevo(*EVALUATE)
    before = sorted(tmp_path.rglob("*"))
    if "-missing" in arguments:
        arguments = arguments[:-1]
        monkeypatch.setitem(sys.modules, "atif", None)
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert text in coevo("export", *arguments, code=code)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_episode_filter_of_training_tasks_is_the_default() -> None:
    assert EpisodeFilter().splits == ("train",)


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(
    coevo: Coevo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coevo(*EVALUATE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CoevoError, match="Did you mean 'toyed'"):
        export_episodes("toyd", tmp_path / "out")
