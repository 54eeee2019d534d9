"""Whole runs whose rounds run beside training: resumed at any point, they end as they did."""

from __future__ import annotations

import io
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

import coevo_gym
from coevo_gym.runs.display import RunProgress
from coevo_gym.runs.stop import StopRequest
from coevo_gym.runs.train import resume
from coevo_gym.store.folder import RunFolder, read_lines
from tests.runs.conftest import TOY, Child
from tests.runs.test_train import assert_same, rows

SETS = {"arms": ["coevolve"], "evolver.overlap": True, "store.keep_checkpoints": 9}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("overlap") / "run"
    coevo_gym.train(TOY, sets=SETS, folder=folder)
    return folder


def test_the_step_at_which_a_round_is_applied_is_recorded(whole: Path) -> None:
    landed = rows(whole, "landings", "arm, key, step")
    applied = rows(whole, "rounds", "arm, key, step")
    assert len(landed) > 1
    assert set(landed) == {row for row in applied if row[2] > 0}
    # They are asked for at every other step, and land at a later one.
    assert {step for _, _, step in landed} & {3, 4, 5, 6}


@pytest.mark.parametrize(
    "step", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)]
)
def test_a_run_resumed_from_any_checkpoint_ends_the_same(
    whole: Path, tmp_path: Path, step: int
) -> None:
    """Later results are deleted, as after kill -9, but not the steps at which they were applied."""
    folder = RunFolder(tmp_path / "run")
    shutil.copytree(whole, folder.path)
    folder.summary.unlink()
    for file in (folder.checkpoints / "coevolve").glob("step-*.pt"):
        if int(file.name[5:11]) > step:
            file.unlink()
    with closing(sqlite3.connect(folder.database)) as database:
        later = "SELECT key FROM rounds WHERE step > ?"
        database.execute(f"DELETE FROM results WHERE key IN ({later})", (step,))
        database.commit()
    with RunProgress(Console(file=io.StringIO())) as progress:
        resume(folder, progress, StopRequest())
    assert_same(folder.path, whole)
    assert rows(folder.path, "landings") == rows(whole, "landings")


def test_a_run_killed_during_a_round_repeats_the_round(
    child: Callable[..., Child], tmp_path: Path
) -> None:
    sets = [f"--set={key}={value}" for key, value in SETS.items() if key != "arms"]
    running = child("train", TOY, "--set=arms=coevolve", *sets, module="tests.runs.held_round")
    running.wait_for("in flight")
    running.wait_for("step 3")
    running.process.kill()
    assert running.end() == -signal.SIGKILL
    folder = tmp_path / "runs" / "toy-run"
    assert not rows(folder, "landings")
    again = child("resume", "toy-run")
    assert again.end() == 0, again.text
    first = [line for line in read_lines(folder / "metrics.jsonl") if line["event"] == "round"]
    assert [line["round"] for line in first][:2] == ["round-0", "round-1"]
    assert rows(folder, "landings")


@pytest.mark.slow
def test_a_run_stopped_during_a_round_abandons_it_and_can_be_resumed(
    child: Callable[..., Child], tmp_path: Path
) -> None:
    sets = [f"--set={key}={value}" for key, value in SETS.items() if key != "arms"]
    running = child("train", TOY, "--set=arms=coevolve", *sets, module="tests.runs.held_round")
    running.wait_for("in flight")
    running.process.send_signal(signal.SIGINT)
    assert running.process.stdin is not None
    running.wait_for("Stopping")
    running.process.stdin.close()  # the round ends, at its next draft
    assert running.end() == 130, running.text
    assert "Stopped and saved" in running.text
    assert "Traceback" not in running.text
    again = child("resume", "toy-run")
    assert again.end() == 0, again.text
