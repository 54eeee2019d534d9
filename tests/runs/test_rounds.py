"""Rounds are carried out once: for all arms that explore alike, and the first one for all."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import coevo_gym
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.seams import Evolver
from coevo_gym.core.task import Split
from coevo_gym.runs.assembly import Assembly
from coevo_gym.runs.config import arm_configs, load_config
from coevo_gym.runs.evolving.rounds import StoredEvolver, round_settings_hash
from coevo_gym.store.database import RunStore
from coevo_gym.store.folder import read_json
from tests.runs.conftest import TOY, Child
from tests.runs.shop import as_options
from tests.toy import BENCHMARK

FIRST = Round.unguided(3, seed=1)
LATER = Round(id="round-1", n_unguided=1, budget=4, seed=2)
TASKS = BENCHMARK.tasks(Split.TRAIN)


class Finds:
    """Finds one task, and counts how often it went."""

    def __init__(self, number: int) -> None:
        self.number, self.ran = number, 0

    def run(self, round: Round) -> RoundResult:
        self.ran += 1
        return RoundResult(round_id=round.id, accepted=(TASKS[self.number],))


def test_equal_rounds_with_the_same_explorer_run_once_and_share_a_result(tmp_path: Path) -> None:
    with closing(RunStore(tmp_path / "run.db")) as store:
        ours, others, third = Finds(0), Finds(1), Finds(2)
        arms = [
            StoredEvolver(ours, store, shared=FIRST),
            StoredEvolver(others, store, shared=FIRST),
            StoredEvolver(third, store, by="otherwise", shared=FIRST),
        ]
        first = [arm.run(FIRST).accepted[0].id for arm in arms]
        later = [arm.run(LATER).accepted[0].id for arm in arms]
        assert first == [TASKS[0].id] * 3
        assert later == [TASKS[0].id, TASKS[0].id, TASKS[2].id]
        assert (ours.ran, others.ran, third.ran) == (2, 0, 1)
        assert arms[2].run(LATER).accepted[0].id == TASKS[2].id
        assert third.ran == 1


def test_different_explorers_give_different_round_settings_hashes() -> None:
    sets = ["arms=static,coevolve,far,own", "arm.far.method=coevolve", "arm.own.method=coevolve"]
    config = load_config(TOY, sets=[*sets, "arm.far.set.explorer.walks=5"]).config
    assembly, arms = Assembly(config), arm_configs(config)

    def by(arm: str, evolver: Evolver | None = None) -> str:
        evolver = evolver or assembly.method(arms[arm]).evolver
        assert evolver is not None
        return round_settings_hash(config, arms[arm], evolver)

    assert by("static") == by("coevolve") == by("own") == ""
    assert len({by("far"), by("own", Finds(0)), ""}) == 3


def test_an_arm_killed_after_its_own_round_resumes_with_its_tasks(
    child: Callable[..., Child], tmp_path: Path
) -> None:
    folders = [tmp_path / "runs" / name for name in ("whole", "cut")]
    sets = {
        "arms": ["agentevolver"],
        "arm.agentevolver.set.method.native": False,
        "arm.agentevolver.set.method.navigating": False,
        "arm.agentevolver.set.loop.study_only_steps": 0,
        "loop.max_steps": 3,
        "store.checkpoint_every_steps": 1,
    }
    coevo_gym.train(TOY, sets=sets, folder=folders[0])
    arguments = ["train", TOY, *as_options(sets | {"name": "cut"})]
    running = child(*arguments, module="tests.runs.dies_after_study")
    assert running.end() == -signal.SIGKILL, running.text
    again = child("resume", "cut")
    assert again.end() == 0, again.text
    theirs, ours = (read_json(folder / "summary.json")["arms"] for folder in folders)
    assert ours == theirs
    assert ours["agentevolver"]["pool_size"] == 8
    assert ours["agentevolver"]["rounds"] == 1


@pytest.fixture
def results(tmp_path: Path) -> list[tuple[str, int]]:
    sets = {
        "arms": ["static", "far", "small"],
        "arm.far.method": "static",
        "arm.far.set.explorer.walks": 5,
        "arm.small.method": "static",
        "arm.small.set.curriculum.initial_size": 4,
        "loop.max_steps": 1,
    }
    coevo_gym.train(TOY, sets=sets, folder=tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "run" / "run.db")) as database:
        rows = database.execute("SELECT arm, key, pool_size FROM rounds ORDER BY rowid").fetchall()
        (n_results,) = database.execute("SELECT COUNT(*) FROM results").fetchone()
    keys = [key for _, key, _ in rows]
    assert keys[0] == keys[1] != keys[2]
    assert n_results == 2
    return [(arm, pool_size) for arm, _, pool_size in rows]


def test_arms_that_want_equally_many_initial_tasks_share_them(
    results: list[tuple[str, int]],
) -> None:
    assert results == [("static", 8), ("far", 8), ("small", 4)]
