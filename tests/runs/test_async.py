"""Whole runs whose episodes advance each at its own pace, with groups of several versions."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coevo_gym
from coevo_gym.core.errors import ConfigError
from coevo_gym.runs.config import RunConfig, load_config
from coevo_gym.store.folder import read_json, read_lines
from tests.runs.conftest import TOY, Child
from tests.runs.test_train import rows

STALE: dict[str, Any] = {"loop.rollout": "async", "loop.max_staleness": 2, "rollout.max_envs": 12}
SMALL: dict[str, Any] = {"loop.max_steps": 4, "store.checkpoint_every_steps": 1}


def steps(run: Path) -> list[dict[str, Any]]:
    return [line for line in read_lines(run / "metrics.jsonl") if line["event"] == "step"]


def check(run: Path, n_steps: int) -> None:
    """All steps are there, each with its groups."""
    lines = steps(run)
    assert [line["step"] for line in lines] == list(range(1, n_steps + 1))
    assert all(line["groups"] == 4 for line in lines)
    recorded = [step for (step,) in rows(run, "groups", "step")]
    assert all(recorded.count(step) >= 4 for step in range(1, n_steps + 1))
    outcome = read_json(run / "summary.json")["arms"]
    assert all(arm["steps"] == n_steps for arm in outcome.values())


def test_an_async_run_with_rounds_and_evaluations_trains_to_its_end(tmp_path: Path) -> None:
    sets = {**STALE, "arms": ["coevolve"]}
    coevo_gym.train(TOY, sets=sets, folder=tmp_path / "run")
    check(tmp_path / "run", 6)
    lines = steps(tmp_path / "run")
    assert max(line["under_way"] for line in lines) > 0
    assert 0 < max(line["staleness"] for line in lines) <= 2
    assert any(0 < line["stale_share"] <= 1 for line in lines)
    assert all(0 < line["importance"] <= 2 for line in lines if "importance" in line)
    rounds = [line for line in read_lines(tmp_path / "run" / "metrics.jsonl")
              if line["event"] == "round"]  # fmt: skip
    assert len(rounds) > 1


@pytest.mark.parametrize("kind", ["ppo", "rest"])
def test_an_async_run_trains_with_other_learners(tmp_path: Path, kind: str) -> None:
    sets = {**STALE, **SMALL, "arms": ["static"], "learner.kind": kind}
    if kind == "rest":
        sets["learner.grow_steps"] = 2
    coevo_gym.train(TOY, sets=sets, folder=tmp_path / "run")
    check(tmp_path / "run", 4)


def test_an_env_step_budget_counts_episodes_cut_at_the_end(tmp_path: Path) -> None:
    sets = {**STALE, "arms": ["static"], "loop.max_steps": None, "loop.max_env_steps": 700}
    coevo_gym.train(TOY, sets=sets, folder=tmp_path / "run")
    outcome = read_json(tmp_path / "run" / "summary.json")["arms"]["static"]
    last = steps(tmp_path / "run")[-1]
    assert last["env_steps"] >= 700
    assert outcome["env_steps"] >= last["env_steps"]
    assert outcome["steps"] == last["step"]


def test_a_killed_async_run_resumes_with_its_groups(
    child: Callable[..., Child], tmp_path: Path
) -> None:
    sets = [f"--set={key}={value}" for key, value in STALE.items()]
    running = child("train", TOY, "--set=arms=coevolve", *sets)
    running.wait_for("train coevolve: 3/6")
    running.process.kill()
    assert running.end() == -signal.SIGKILL
    again = child("resume", "toy-run")
    assert again.end() == 0, again.text
    check(tmp_path / "runs" / "toy-run", 6)


@pytest.mark.slow
def test_a_stopped_async_run_can_be_resumed(child: Callable[..., Child], tmp_path: Path) -> None:
    sets = [f"--set={key}={value}" for key, value in STALE.items()]
    running = child("train", TOY, "--set=arms=static", *sets)
    running.wait_for("train static: 2/6")
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 130, running.text
    assert "Stopped and saved" in running.text
    assert "Traceback" not in running.text
    again = child("resume", "toy-run")
    assert again.end() == 0, again.text
    check(tmp_path / "runs" / "toy-run", 6)


class TestSettings:
    def resolved(self, **sets: Any) -> RunConfig:
        overrides = {key.replace("__", "."): value for key, value in sets.items()}
        return load_config(None, sets=overrides, environ={}).config

    def test_lock_step_rollout_refuses_max_staleness(self) -> None:
        with pytest.raises(ConfigError, match="needs rollout = 'async'"):
            self.resolved(loop__max_staleness=2)
