"""A run that holds tasks back, and goes on after a person has released some."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from coevo_gym.runs.config import load_config
from coevo_gym.runs.progress_reports import ProgressSink
from coevo_gym.runs.stop import Stopped, StopRequest
from coevo_gym.runs.tasks.review import find_held_tasks, store_decisions
from coevo_gym.runs.train import resume, train
from coevo_gym.store.folder import RunFolder
from coevo_gym.store.reader import RunReader
from tests.runs.conftest import TOY
from tests.runs.test_train import assert_same

SETS = ["arms=coevolve", "warmup.n_tasks=8", "warmup.max_epochs=1", "loop.max_steps=8"]


class Silent(ProgressSink):
    """Nobody looks on."""


class StopAfter(StopRequest):
    """Stops at the boundary after a step."""

    def __init__(self, run: RunFolder, step: int, *, arm: str = "coevolve") -> None:
        super().__init__()
        self._metrics, self._step, self._arm = run.metrics, step, arm

    def __call__(self) -> bool:
        done = self._metrics.read_text() if self._metrics.exists() else ""
        return f'"event": "step", "arm": "{self._arm}", "step": {self._step},' in done


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that was stopped after a round has held tasks, before the next one."""
    folder = RunFolder(tmp_path_factory.mktemp("hold") / "run")
    resolved = load_config(TOY, sets=[*SETS, "gates.hold.pattern=blue"])
    with pytest.raises(Stopped):
        train(folder, resolved, Silent(), StopAfter(folder, 3))
    return folder


def again(stopped: RunFolder, path: Path) -> RunFolder:
    shutil.copytree(stopped.path, path)
    return RunFolder(path)


def test_a_released_task_is_practised_and_a_resumed_run_ends_the_same(
    stopped: RunFolder, tmp_path: Path
) -> None:
    waiting = find_held_tasks(stopped)
    assert len(waiting) > 2
    assert all("blue" in one.verdict.reason for one in waiting)
    assert all(one.verdict.checks[-1].gate == "substance" for one in waiting)
    pooled = {task.id for task in RunReader(stopped.database).pool_tasks()}
    assert not {one.task.id for one in waiting} & pooled
    store_decisions(stopped, waiting[1:3], "released")
    store_decisions(stopped, waiting[:1], "rejected", "dull")

    whole = again(stopped, tmp_path / "whole")
    resume(whole, Silent(), StopRequest())
    reader = RunReader(whole.database)
    ids = [one.task.id for one in waiting]
    assert reader.rounds_that_added(ids[0]) == []
    rounds = [reader.rounds_that_added(id) for id in ids[1:3]]
    assert rounds[0] == rounds[1]
    ((arm, round_id),) = rounds[0]
    accepted = [task.id for task in reader.round(arm, round_id).result.accepted]
    assert accepted[-2:] == ids[1:3]

    parts = again(stopped, tmp_path / "parts")
    with pytest.raises(Stopped):
        resume(parts, Silent(), StopAfter(parts, 5))
    resume(parts, Silent(), StopRequest())
    assert_same(whole.path, parts.path)

    without = again(stopped, tmp_path / "without")
    store_decisions(without, find_held_tasks(without)[1:3], "rejected")
    resume(without, Silent(), StopRequest())
    assert not {task.id for task in RunReader(without.database).pool_tasks()} & set(ids)
