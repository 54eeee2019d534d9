"""What a run's database keeps of evaluations: how each task's episode ended, at every step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from coevo_gym.core.task import Split
from coevo_gym.core.trajectory import EndReason, EvalTrajectory, Step
from coevo_gym.episodes.evaluation import to_evaluated_task
from coevo_gym.runs.table import RANDOM, WARMUP
from coevo_gym.store.database import RunStore
from coevo_gym.store.folder import read_json, read_lines
from coevo_gym.store.reader import Evaluated, RunReader
from tests.toy import BENCHMARK

TASKS = BENCHMARK.tasks(Split.VAL)
LONG = "A page of text. " * 50


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with closing(RunStore(tmp_path / "run.db")) as opened:
        yield opened


def ended(place: int, *, success: bool = True, sample: int = 0) -> Evaluated:
    failure = ("", None) if success else ("state_mismatch", 2)
    return Evaluated(TASKS[place].id, success, float(success), "solved", 4, sample, *failure)


def test_an_evaluation_is_read_back_and_replaced_as_a_whole(
    store: RunStore, tmp_path: Path
) -> None:
    store.add_evaluation("a", 3, [ended(0), ended(1, success=False)])
    store.add_evaluation("a", 6, [ended(0)])
    store.add_evaluation("b", 3, [ended(1)])
    reader = RunReader(tmp_path / "run.db")
    assert reader.evaluation_steps("a") == [3, 6]
    assert reader.evaluation("a", 3) == [ended(0), ended(1, success=False)]
    store.add_evaluation("a", 3, [ended(1)])
    assert reader.evaluation("a", 3) == [ended(1)]
    store.delete_after("a", 3)
    assert (reader.evaluation_steps("a"), reader.evaluation_steps("b")) == ([3], [3])
    store.delete_after("a", -1)
    assert reader.evaluation_steps("a") == []


def test_evaluated_tasks_are_stored_separately_without_ground_truth(store: RunStore) -> None:
    tasks = [to_evaluated_task(task) for task in TASKS[:3]]
    store.add_evaluated_tasks(tasks)
    store.add_evaluated_tasks(tasks[:1])
    assert store.evaluated_tasks() == tasks
    assert store.tasks() == []
    truth = {*TASKS[0].solution, "verifier", "solution"}
    assert not truth & {str(value) for value in tasks[0]}


def test_an_evaluation_trajectory_is_stored_with_its_episode(store: RunStore) -> None:
    steps = (
        Step(LONG, LONG, "press red", extras={"a": (1, 2)}, said="<think>red</think>"),
        Step("short", LONG, "done", reward=1.0, terminated=True, calls=("done",)),
    )
    trajectory = EvalTrajectory(
        task_id=TASKS[0].id, steps=steps, score=1.0, success=True, end_reason=EndReason.SOLVED
    )
    store.add_eval_episode("a", 0, ended(0, sample=2), trajectory)
    store.add_eval_episode("a", 0, ended(0, sample=2), trajectory)
    assert store.evaluation("a", 0) == [ended(0, sample=2)]
    assert store.eval_trajectory("a", 0, TASKS[0].id, 2) == trajectory
    assert store.eval_trajectory("a", 0, TASKS[0].id) is None


def test_a_run_stores_each_evaluation_by_task(finished: Path) -> None:
    reader = RunReader(finished / "run.db")
    table = {row["name"]: row for row in read_json(finished / "summary.json")["table"]}
    tasks = [task.id for task in reader.evaluated_tasks()]
    assert len(tasks) == table["coevolve"]["n_tasks"]
    for line in read_lines(finished / "metrics.jsonl"):
        if line["event"] == "eval" and line["step"]:
            episodes = reader.evaluation(line["arm"], line["step"])
            assert "".join(str(int(one.success)) for one in episodes) == line["solved"]
            assert [one.task_id for one in episodes] == tasks
            assert all(bool(one.failure) is not one.success for one in episodes)
    assert reader.evaluation_steps("coevolve") == [3, 6]
    for name in (RANDOM, WARMUP):
        episodes = reader.evaluation(name, 0)
        assert sum(one.success for one in episodes) / len(episodes) == table[name]["success"]
        assert sum(one.score for one in episodes) / len(episodes) == pytest.approx(
            table[name]["score"]
        )
