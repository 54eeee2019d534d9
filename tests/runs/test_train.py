"""Whole runs: what they leave behind, and that no way of stopping one changes how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import sys
import weakref
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coevo_gym import cli
from coevo_gym.core.trajectory_json import WALL_TIMES as STEP_TIMES
from coevo_gym.runs import train
from coevo_gym.store.checkpoint import Checkpoint, Checkpoints
from coevo_gym.store.folder import RunFolder, read_json, read_lines
from coevo_gym.trainers.protocols import training_success
from coevo_gym.view.collection import RunCollection, ShownRun
from coevo_gym.view.library import Library
from coevo_gym.view.model.measures import run_measures, task_set_comparison
from coevo_gym.view.model.runs import run_detail
from coevo_gym.view.model.tasks import task_rows
from tests.runs.conftest import TOY, Child
from tests.runs.test_folder import full

WALL_TIMES = {"cpu_s", "rollout_s", "update_s", "round_s", "old_s", "reference_s", "step_s"}
OF_PROCESS = {
    "prompt_tokens_read",
    "prompt_tokens_reused",
    "tokens_drawn",
    "tokens_guessed",
    "guesses_right",
    "tokens_fed",
    "rows_per_pass",
}
"""Counts of all sampling since the last update, which a process that resumes has not done."""
NewChild = Callable[..., Child]


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = read_lines(run / "metrics.jsonl")
    return [{k: v for k, v in line.items() if k not in WALL_TIMES | OF_PROCESS} for line in lines]


def rows(run: Path, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    database = sqlite3.connect(run / "run.db")
    try:
        return sorted(database.execute(f"SELECT {columns} FROM {table}").fetchall())
    finally:
        database.close()


def rounds(run: Path) -> list[tuple[Any, ...]]:
    """The rows of a run's rounds without their time, and without what a tape saved a model."""
    columns = "arm, round_id, step, arm_env_steps, pool_size, key, first, body, counts"
    repeatable = []
    for *row, counts in rows(run, "rounds", columns):
        costs = ("seconds", "calls", "usage")
        numbers = {name: n for name, n in json.loads(counts).items() if name not in costs}
        repeatable.append((*row, numbers))
    return repeatable


def episodes(run: Path) -> list[tuple[Any, ...]]:
    """The rows of a run's episodes, without the wall times of their steps."""
    repeatable = []
    for *row, body, _checksum in rows(run, "trajectories"):
        episode = json.loads(zlib.decompress(body))
        for step in episode["steps"]:
            for name in STEP_TIMES:
                step.pop(name)
        repeatable.append((*row, episode))
    return repeatable


def assert_same(run: Path, other: Path) -> None:
    """The same tasks, episodes, rounds, metrics, table and weights, but for wall times."""
    assert read_json(run / "summary.json") == read_json(other / "summary.json")
    assert metrics(run) == metrics(other)
    for table in ("tasks", "groups", "signals", "verdicts", "lineage"):
        assert rows(run, table) == rows(other, table)
    assert episodes(run) == episodes(other)
    assert rounds(run) == rounds(other)
    assert rows(run, "results", "key, round_id") == rows(other, "results", "key, round_id")


def test_a_run_writes_its_manifest_summary_report_and_trajectories(finished: Path) -> None:
    manifest = read_json(finished / "manifest.json")
    assert manifest["config"]["seed"] == manifest["seed"] == 3
    assert manifest["model"].startswith("tiny-")
    assert set(manifest["task_sets"]) == {"training", "held-out"}
    assert manifest["versions"]["torch"]
    summary = read_json(finished / "summary.json")
    names = [row["name"] for row in summary["table"]]
    assert names == ["random", "warm-up", "static", "coevolve"]
    printed = (finished.parents[1] / "output.txt").read_text()
    for row in summary["table"]:
        cells = (row["name"], f"{row['success']:.1%}", f"{row['score']:.3f}", f"{row['env_steps']}")
        assert any(all(cell in line for cell in cells) for line in printed.splitlines())
        assert row["low"] <= row["success"] <= row["high"]
        assert row["n_tasks"] == 10
    for arm, outcome in summary["arms"].items():
        lines = "\n".join(line for line in printed.splitlines() if f"│ {arm} " in line)
        assert f" {outcome['curriculum']['mixed_groups']:.1%} " in lines
        assert f" {outcome['curriculum']['share_explore_steps']:.1%} " in lines
        row = next(row for row in summary["table"] if row["name"] == arm)
        learned, sampled = row["gradient_tokens"], row["rollout_tokens"]
        assert f" {learned:,} ({learned / sampled:.1%}) " in lines
        # The tiny policy samples one choice an env step, and mixed groups alone have advantages.
        assert sampled == outcome["curriculum"]["practice_steps"]
        assert learned == outcome["curriculum"]["steps_mixed"] > 0
    assert "<html" in (finished / "report.html").read_text()
    assert rows(finished, "trajectories")
    assert not list(finished.rglob("*.part"))


def test_arms_share_their_initial_tasks_and_only_coevolve_evolves(finished: Path) -> None:
    arms = read_json(finished / "summary.json")["arms"]
    assert arms["static"]["rounds"] == 1 < arms["coevolve"]["rounds"]
    assert arms["static"]["pool_size"] == 8 < arms["coevolve"]["pool_size"]
    first = [row for row in rows(finished, "rounds", "arm, round_id, key") if row[1] == "round-0"]
    assert len({key for _, _, key in first}) == 1
    assert len(first) == 2
    begin = [line for line in metrics(finished) if line["event"] == "eval" and line["step"] == 0]
    assert begin[0] | {"arm": ""} == begin[1] | {"arm": ""}


def test_a_budget_used_up_by_the_initial_tasks_gives_a_warning(child: NewChild) -> None:
    running = child("train", TOY, "--set", "loop.max_env_steps=1", "--set", "loop.max_steps=none")
    assert running.end() == 0, running.text
    assert re.search(
        r"warning: static will not be trained: .* \d+ env steps, but loop.max_env_steps is 1\. ",
        running.text,
    )


def test_no_held_out_task_is_trained_on_or_stored(finished: Path) -> None:
    assert {split for (split,) in rows(finished, "tasks", "split")} == {"train"}


def open_run(run: Path) -> ShownRun:
    return RunCollection(Library([RunFolder(run)])).runs()[0]


def test_the_numbers_of_the_report_match_the_run(finished: Path) -> None:
    run = open_run(finished)
    detail, measures, sets = run_detail(run), run_measures(run), task_set_comparison(run)
    static, coevolve = detail.arms[2:]
    assert [row.name for row in detail.arms] == ["random", "warm-up", "static", "coevolve"]
    evaluations = [point for point in detail.evaluations if point.arm == "static"]
    assert evaluations[-1].env_steps == static.env_steps
    assert len(detail.training[0].success) == 6
    rows = task_rows(run)
    evolved = [row for row in rows if row.step]
    assert coevolve.pool_size == 8 + len(evolved) > 8
    assert sum(row.step == 0 for row in rows) == 8
    assert sum(coevolve.signals.values()) > 0
    assert all(row.parents and row.signal for row in evolved)
    assert any(row.practice for row in evolved)
    assert {item.label for item in sets.similarity} == {"D_0", "evolved by coevolve"}
    assert len(measures.warmup_loss) > 1
    (arm,) = sets.arms
    assert len(arm.distance) > 1
    assert 0.0 < (arm.self_similarity[0] or 0.0) <= 1.0
    numbers = measures.arms[1].numbers
    assert numbers["accepted"] == len(evolved)
    assert numbers["pass_rate"] == numbers["accepted"] / numbers["candidates"]
    assert 0.0 < numbers["share_explore_steps"] < 1.0
    assert 0.0 < numbers["share_gate_steps"] < 1.0
    assert 0.0 < (measures.arms[1].round_time or 0.0) < 1.0
    arms = read_json(finished / "summary.json")["arms"]
    for row in measures.arms:
        stored = arms[row.arm]["curriculum"]
        for name in ("mixed_groups", "tags_covered", "reserve"):
            assert row.numbers[name] == stored[name] > 0
        trained = next(arm for arm in detail.arms if arm.name == row.arm)
        assert row.numbers["gradient_tokens"] == trained.gradient_tokens
        assert row.numbers["gradient_share"] == trained.gradient_tokens / trained.rollout_tokens
        practised = ("steps_all_fail", "steps_mixed", "steps_all_pass")
        assert sum(row.numbers[how] or 0 for how in practised) == stored["practice_steps"]
    (cross,) = measures.cross
    assert cross.both + cross.only_ours + cross.only_baseline + cross.neither == 10
    solved = {row.name: row.success for row in detail.arms}
    assert cross.both + cross.only_ours == round(10 * solved[cross.ours])
    assert cross.both + cross.only_baseline == round(10 * solved[cross.baseline])


KILLED_AT = [
    pytest.param("first task set: 4/8", id="first-task-set", marks=pytest.mark.slow),
    pytest.param("train static: 3/6", id="static", marks=pytest.mark.slow),
    pytest.param("train coevolve: 3/6", id="after-a-round"),
    pytest.param("coevolve, step 6", id="last-evaluation", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("line", KILLED_AT)
def test_a_killed_run_ends_like_an_uninterrupted_one(
    child: NewChild, finished: Path, tmp_path: Path, line: str
) -> None:
    # Checkpoints are two steps apart, so that steps are lost and done again.
    running = child("train", TOY, "--set", "store.checkpoint_every_steps=2")
    running.wait_for(line)
    running.process.kill()
    assert running.end() == -signal.SIGKILL
    assert not (tmp_path / "runs" / "toy-run" / "summary.json").exists()
    again = child("resume", "toy-run")
    assert again.end() == 0, again.text
    assert_same(tmp_path / "runs" / "toy-run", finished)


def test_ctrl_c_saves_a_run_and_prints_how_to_resume(
    child: NewChild, finished: Path, tmp_path: Path
) -> None:
    running = child("train", TOY)
    running.wait_for("train static: 2/6")
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 130, running.text
    assert re.search(r"Stopping after this step and saving: step \d of static began", running.text)
    assert "Continue with: coevo resume toy-run" in running.text
    assert "Traceback" not in running.text
    again = child("resume", "toy-run")
    assert again.end() == 0, again.text
    assert_same(tmp_path / "runs" / "toy-run", finished)


def test_a_second_ctrl_c_exits_at_once(child: NewChild, tmp_path: Path) -> None:
    running = child("train", TOY, module="tests.runs.blocked")
    running.wait_for("waiting")
    running.process.send_signal(signal.SIGINT)
    running.wait_for("Stopping after this step")
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 130
    assert "Traceback" not in running.text


def test_an_arm_frees_its_memory_before_the_next_one(child: NewChild) -> None:
    run = child("train", TOY, "--set=loop.max_steps=1", module="tests.runs.lifetimes")
    assert run.end() == 0, run.text
    assert run.text.count("learners in memory: 0") == 2
    assert "learners in memory: 1" not in run.text


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["coevo", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


def test_a_full_disk_is_reported_and_the_run_can_be_resumed(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    saves: list[int] = []
    save = Checkpoints.save

    def save_until_full(self: Checkpoints, step: int, state: Any) -> Path:
        saves.append(step)
        if len(saves) == 4:  # the warm-up's, then those of steps 1 to 3
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", full)
                return save(self, step, state)
        return save(self, step, state)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_until_full)
        assert run_main(monkeypatch, "train", TOY) == 1
    text = capsys.readouterr().err
    assert "No space left on device" in text
    assert "Continue with: coevo resume toy-run" in text
    assert run_main(monkeypatch, "resume", "toy-run") == 0
    assert_same(tmp_path / "runs" / "toy-run", finished)


def test_a_run_with_non_finite_gradients_ends_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_main(monkeypatch, "train", TOY, "--set=arms=static", "--set=learner.lr=1e30") == 1
    output = capsys.readouterr()
    assert "3 optimiser steps in a row had a non-finite loss or gradient" in output.err
    assert "lower learning rate" in output.err
    assert "coevo resume" not in output.err  # it would end there again
    assert output.out.count("warning: optimiser step skipped") == 3


def test_a_run_with_a_damaged_checkpoint_resumes_from_the_previous_one(
    child: NewChild, finished: Path, tmp_path: Path
) -> None:
    running = child("train", TOY)
    running.wait_for("train static: 3/6")
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 130
    run = tmp_path / "runs" / "toy-run"
    latest = max((run / "checkpoints" / "static").glob("*.pt"))
    latest.write_bytes(latest.read_bytes()[:-100])
    again = child("resume", "toy-run")
    assert again.end() == 0, again.text
    assert f"{latest.name} is damaged" in again.text.replace("\n", "")
    assert_same(run, finished)


def test_success_does_not_depend_on_the_training_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sets = ("arms=static", "learner.outcome=score", "loop.max_steps=3", "warmup.n_tasks=0")
    assert run_main(monkeypatch, "train", TOY, *(f"--set={item}" for item in sets)) == 0
    lines = [line for line in metrics(tmp_path / "runs" / "toy-run") if line["event"] == "step"]
    assert any(line["reward"] != line["success"] for line in lines)
    printed = capsys.readouterr().out
    for line in lines:
        assert f"train static: {line['step']}/3, success {line['success']:.0%}" in printed
    (curve,) = run_detail(open_run(tmp_path / "runs" / "toy-run")).training
    assert list(curve.success) == [line["success"] for line in lines]


def test_training_success_includes_groups_filtered_by_dynamic_sampling() -> None:
    assert training_success({"success": 0.5, "success_before_filter": 0.9}) == 0.9
    assert training_success({"success": 0.5}) == 0.5
    assert training_success({}) is None


def stopped(child: NewChild, runs: Path) -> Path:
    """The folder of a run that was stopped within its first arm."""
    running = child("train", TOY)
    running.wait_for("train static: 3/6")
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 130, running.text
    return runs / "runs" / "toy-run"


def test_the_reference_is_saved_once_for_all_arms(finished: Path) -> None:
    folder = RunFolder(finished).checkpoints
    (start,) = (folder / "warm-up").glob("*.pt")
    trained = [path for arm in ("static", "coevolve") for path in (folder / arm).glob("*.pt")]
    assert len(trained) == 4
    for path in trained:
        # Weights and two moments of them, and little else; the reference would be a fourth.
        assert path.stat().st_size < 3.5 * start.stat().st_size
    for arm in ("static", "coevolve"):
        saved = Checkpoints(folder / arm).load_latest()
        assert saved is not None
        assert saved.state["learner"]["reference"] is None


@pytest.mark.slow
def test_a_loaded_checkpoint_does_not_stay_in_memory(
    child: NewChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(child, tmp_path)
    monkeypatch.chdir(tmp_path)
    read: list[weakref.ref[Any]] = []
    load_latest, run_loop = Checkpoints.load_latest, train._Run._run_loop

    def read_and_watch(self: Checkpoints) -> Checkpoint | None:
        checkpoint = load_latest(self)
        if checkpoint and self.folder.name == "static":
            read.extend(map(weakref.ref, checkpoint.state["policy"]["net"].values()))
        return checkpoint

    def checked(self: Any, *arguments: Any) -> Any:
        assert all(weight() is None for weight in read)
        return run_loop(self, *arguments)

    monkeypatch.setattr(Checkpoints, "load_latest", read_and_watch)
    monkeypatch.setattr(train._Run, "_run_loop", checked)
    assert run_main(monkeypatch, "resume", "toy-run") == 0
    assert read


@pytest.mark.slow
def test_an_arm_is_not_resumed_with_other_initial_weights(child: NewChild, tmp_path: Path) -> None:
    folder = RunFolder(stopped(child, tmp_path)).checkpoints
    warmup = Checkpoints(folder / "warm-up", keep=1)
    start = warmup.load_latest()
    assert start is not None
    for weights in start.state["policy"]["net"].values():
        weights += 1
    warmup.save(0, start.state)
    again = child("resume", "toy-run")
    assert again.end() == 1
    text = " ".join(again.text.split())
    assert "The initial weights of this run have changed" in text
    assert "Restore it, or start over with --overwrite" in text


def test_a_run_is_not_resumed_on_other_tasks(
    child: NewChild, finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "toy-run"
    run.mkdir(parents=True)
    manifest = read_json(finished / "manifest.json")
    manifest["task_sets"]["training"] = "0" * 64
    (run / "manifest.json").write_text(json.dumps(manifest))
    again = child("resume", "toy-run")
    assert again.end() == 1
    assert "training tasks differ from those that this run started with" in again.text
