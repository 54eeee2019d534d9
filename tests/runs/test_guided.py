"""A run whose episodes are guided and studied: in its store, in its metrics, and after kill -9."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.store.folder import RunFolder, read_json, read_lines
from coevo_gym.store.reader import RunReader
from tests.runs.conftest import TOY, Child

METHOD = '''
"""The initial tasks, told how often anything was noted."""

from dataclasses import replace

from coevo_gym.methods.coevolve import StaticSettings, static
from coevo_gym.methods.kit import Kit
from coevo_gym.methods.method import Method, NoSettings, method
from tests.trainers.guiding import ByTally, Outcomes, Tally


@method("told", curriculum={"growth": {"kind": "none"}})
def told(kit: Kit) -> Method:
    """The initial tasks, told how often anything was noted."""
    tally = Tally()
    return replace(
        static(StaticSettings(), kit),
        coach=ByTally(tally),
        studies=(Outcomes(),),
        memories={"tally": tally},
    )
'''
STEPS, GROUPS, SIZE = 4, 4, 4
SETS = (
    *(f"loop.max_steps={STEPS}", "store.record=all"),
    *("evaluation.n_tasks=3", "loop.evaluate_every_steps=0"),
)


def steps_of(folder: RunFolder, arm: str) -> list[dict[str, Any]]:
    return [
        line
        for line in read_lines(folder.metrics)
        if line["event"] == "step" and line["arm"] == arm
    ]


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if not key.partition(".")[0].endswith("_s")}


@pytest.fixture
def sets(tmp_path: Path) -> list[str]:
    folder = tmp_path / "methods"
    folder.mkdir()
    (folder / "told.py").write_text(METHOD)
    return [f"--set={item}" for item in (*SETS, f"plugins.methods={folder}")]


def killed_and_whole(
    child: Callable[..., Child], tmp_path: Path, arm: str, *sets: str
) -> tuple[RunFolder, RunReader]:
    """A run of two arms, after one that was killed in the second has ended just as it did."""
    sets = (f"--set=arms=static,{arm}", *sets)
    whole = child("train", TOY, "--name=whole", *sets)
    assert whole.end() == 0, whole.text
    killed = child("train", TOY, "--name=killed", *sets)
    killed.wait_for(f"train {arm}: 2/{STEPS}")
    killed.process.kill()
    assert killed.end() == -signal.SIGKILL
    resumed = child("resume", "killed")
    assert resumed.end() == 0, resumed.text

    folders = [RunFolder(tmp_path / "runs" / name) for name in ("whole", "killed")]
    one, other = (read_json(folder.summary)["arms"] for folder in folders)
    assert {arm: summary["weights"] for arm, summary in one.items()} == {
        arm: summary["weights"] for arm, summary in other.items()
    }
    assert one[arm]["weights"] != one["static"]["weights"]
    stores = [RunReader(folder.database) for folder in folders]
    assert stores[0].notes(arm) == stores[1].notes(arm)
    assert stores[0].note_counts() == stores[1].note_counts()
    assert stores[0].trajectories(arm) == stores[1].trajectories(arm)
    lines = [[without_times(line) for line in steps_of(f, arm)] for f in folders]
    assert lines[0] == lines[1]
    return folders[0], stores[0]


@pytest.mark.slow
def test_a_killed_guided_run_ends_like_an_uninterrupted_one(
    child: Callable[..., Child], tmp_path: Path, sets: list[str]
) -> None:
    folder, store = killed_and_whole(child, tmp_path, "told", *sets)

    # What is there, is what happened.
    notes, episodes = store.notes("told"), store.trajectories("told")
    assert len(notes) == len(episodes) == STEPS * GROUPS * SIZE
    assert not store.notes("static")
    for number, episode in enumerate(episodes):
        step, place = number // (GROUPS * SIZE), number % SIZE
        assert episode.interface == f"remark:({step} so far)"
        assert episode.cue_ids == (("time",) if place % 2 else ())
        assert all(s.shown == f"{s.observation} ({step} so far)" for s in episode.steps)
        (note,) = notes.of("outcome", episode.group_id, place)
        assert note.label == ("solved" if episode.success else "failed")
        assert note.evidence["shown"] == tuple(s.shown[-12:] for s in episode.steps)
    assert all(not episode.interface for episode in store.trajectories("static"))
    numbers = steps_of(folder, "told")
    assert [line["memory.tally.told"] for line in numbers] == [1, 2, 3, 4]
    assert all(line["notes.outcome"] == GROUPS * SIZE for line in numbers)
    assert all({"guide_s", "study_s"} <= line.keys() for line in numbers)
    assert not [k for line in steps_of(folder, "static") for k in line if k.startswith("notes")]


@pytest.mark.slow
def test_a_killed_seal_run_ends_like_an_uninterrupted_one(
    child: Callable[..., Child], tmp_path: Path, sets: list[str]
) -> None:
    method = {
        "utility": "ema",
        "task_weights": "true",
        "profile.evolve_every_steps": "1",
        "profile.count": "1",
    }
    own = (f"--set=arm.seal.set.method.{key}={value}" for key, value in method.items())
    folder, store = killed_and_whole(child, tmp_path, "seal", *sets, *own)
    numbers = steps_of(folder, "seal")
    assert [line["memory.profile.evolutions"] for line in numbers] == [1, 2, 3, 4]
    assert all(line["notes.turn_label"] == GROUPS * SIZE for line in numbers)
    assert len({episode.interface for episode in store.trajectories("seal")}) > 1
