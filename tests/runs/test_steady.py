"""Runs that measure on scenarios set aside, by several evaluations, with averaged weights."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from rich.console import Console

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.stats import wilson_interval
from coevo_gym.core.task import Split
from coevo_gym.core.task_file import write_tasks
from coevo_gym.envs.held_out import is_held_out
from coevo_gym.runs.arm import Arm
from coevo_gym.runs.assembly import Assembly, load_evaluation_weights, weights_hash
from coevo_gym.runs.config import load_config
from coevo_gym.runs.display import RunProgress
from coevo_gym.runs.evals.evaluation import evaluate_job
from coevo_gym.runs.evals.job import make_run_job
from coevo_gym.runs.manifest import read_manifest
from coevo_gym.runs.stop import Stopped
from coevo_gym.runs.table import mean_of_last
from coevo_gym.runs.tasks.importing import Importer
from coevo_gym.runs.train import RunSummary, resume, train
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.folder import RunFolder, read_json, read_lines
from coevo_gym.store.reader import RunReader
from tests.runs.conftest import TOY
from tests.toy import BENCHMARK

SETS = [
    "benchmark.hold_out=0.3",
    "evaluation.split=held_out",
    "evaluation.last=2",
    "evaluation.n_tasks=30",
    "loop.evaluate_every_steps=1",
    "loop.max_steps=5",
    "learner.average=0.6",
    "learner.lr_decay=linear",
    "learner.outcome=score",
    "store.checkpoint_every_steps=2",
    "arms=static,again,coevolve",
]


def quiet() -> RunProgress:
    return RunProgress(Console(file=io.StringIO()))


AGAIN = """
[arm.again]
method = "static"
set = {"loop.seed_of_order" = 1}
"""


def run(folder: Path, stop: Any = lambda: False) -> RunSummary:
    settings = folder.with_suffix(".toml")
    settings.write_text(Path(TOY).read_text() + AGAIN)
    resolved = load_config(settings, sets=SETS, environ={})
    return train(RunFolder(folder), resolved, quiet(), stop)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("steady") / "run"
    run(folder)
    return folder


def test_held_out_tasks_are_never_trained_on_explored_or_stored(done: Path) -> None:
    reader = RunReader(RunFolder(done).database)
    tasks = reader.tasks()
    assert {task.split for task in tasks} == {Split.TRAIN}
    assert not [task for task in tasks if is_held_out("toy", task.scenario, 0.3)]
    leaks = [v for each in reader.rounds() for v in each.result.verdicts if v.gate == "split_leak"]
    assert any("held_out" in verdict.reason for verdict in leaks), "no draft lay there"


def test_the_number_of_an_arm_is_the_mean_of_its_last_evaluations(done: Path) -> None:
    summary = read_json(done / "summary.json")
    assert summary["split"] == "held_out"
    for row in summary["table"][2:]:
        evaluations = summary["arms"][row["name"]]["evaluations"]
        assert [numbers["step"] for numbers in evaluations] == [0, 1, 2, 3, 4, 5]
        assert evaluations[-1]["after_env_steps"] == row["env_steps"]
        assert row["success"] == pytest.approx(fmean(n["success_rate"] for n in evaluations[-2:]))
        assert row["low"] <= row["success"] <= row["high"]
        assert row["n_tasks"] == evaluations[-1]["episodes"] == 23


def test_mean_of_last_averages_the_last_evaluations_without_the_warm_up() -> None:
    rates = (0.1, 0.5, 0.6, 0.8)
    each = [
        {
            "success_rate": rate,
            "success_rate_low": 0.0,
            "success_rate_high": 1.0,
            "mean_score": rate / 2,
            "tasks": 40.0,
        }
        for rate in rates
    ]
    assert mean_of_last(each, 1) == each[-1]
    assert mean_of_last(each[:1], 3) == each[0], "of an arm that was never trained"
    mean = mean_of_last(each, 2)
    assert mean["success_rate"] == pytest.approx(0.7)
    assert mean["mean_score"] == pytest.approx(0.35)
    low, high = wilson_interval(28, 40)
    assert (mean["success_rate_low"], mean["success_rate_high"]) == (low, high)
    assert mean_of_last(each, 9)["success_rate"] == pytest.approx(19 / 30), "without the warm-up"


def test_averaged_weights_are_evaluated_during_and_after_the_run(done: Path) -> None:
    arm = read_json(done / "summary.json")["arms"]["static"]
    evaluation = evaluate_job(make_run_job(RunFolder(done), "static", "held_out"))
    last = arm["evaluations"][-1]
    assert (evaluation.success_rate, evaluation.mean_score) == (
        last["success_rate"],
        last["mean_score"],
    )
    saved = Checkpoints(RunFolder(done).checkpoints / "static").load_latest()
    assert saved is not None
    policy = Assembly(read_manifest(RunFolder(done))[1]).policy
    load_evaluation_weights(policy, saved.state)
    assert weights_hash(policy) == arm["weights"]
    policy.load_state_dict(saved.state["policy"])
    assert weights_hash(policy) != arm["weights"], "nothing was averaged"


def test_a_repeated_arm_draws_the_same_tasks_in_another_order(done: Path) -> None:
    rounds = RunReader(RunFolder(done).database).rounds()
    first = {each.arm: [t.id for t in each.result.accepted] for each in rounds if each.step == 0}
    assert first["static"] == first["again"]
    begin = [e for e in read_lines(done / "metrics.jsonl") if e["event"] == "eval"]
    assert len({e["eval.mean_score"] for e in begin if e["step"] == 0}) == 1
    arms = read_json(done / "summary.json")["arms"]
    assert arms["static"]["weights"] != arms["again"]["weights"]


@pytest.mark.parametrize("at", [1, pytest.param(3, marks=pytest.mark.slow), 4])
def test_a_stopped_run_ends_like_an_uninterrupted_one(done: Path, tmp_path: Path, at: int) -> None:
    folder, asked = tmp_path / "run", 0

    def stop() -> bool:
        nonlocal asked
        steps = [e for e in read_lines(folder / "metrics.jsonl") if e["event"] == "step"]
        asked += 1
        return bool(steps) and steps[-1]["step"] == at

    with pytest.raises(Stopped):
        run(folder, stop=stop)
    resume(RunFolder(folder), quiet(), lambda: False)
    assert read_json(folder / "summary.json") == read_json(done / "summary.json")


def test_a_killed_run_loses_no_evaluation(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps after the last checkpoint are repeated, with their evaluations."""

    class Killed(Exception):
        pass

    folder, save = tmp_path / "run", Arm.save

    def dies(self: Arm, checkpoints: Any) -> None:
        if self.loop.state.step == 4:
            raise Killed
        save(self, checkpoints)

    with monkeypatch.context() as patch:
        patch.setattr(Arm, "save", dies)
        with pytest.raises(Killed):
            run(folder)
    resume(RunFolder(folder), quiet(), lambda: False)
    assert read_json(folder / "summary.json") == read_json(done / "summary.json")


def test_held_out_tasks_are_not_imported_into_the_run(done: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(done, folder)
    native = BENCHMARK.tasks(Split.TRAIN)
    aside = next(task for task in native if is_held_out("toy", task.scenario, 0.3))
    write_tasks(tmp_path / "mine.jsonl", [aside])
    proposal = f'{{"source": "{aside.name}", "description": "x", "turns": ["Press red."],'
    proposal += '"actions": ["press red", "done"], "confidence": 0.5}\n'
    with (tmp_path / "mine.jsonl").open("a") as file:
        file.write(proposal)
    task, drafted = Importer(RunFolder(folder)).judge(tmp_path / "mine.jsonl")
    assert task.verdict is not None
    assert (task.task, task.verdict.gate) == (None, "split_leak")
    assert (drafted.task, drafted.verdict) == (None, None)
    assert "belongs to a held_out task" in drafted.problem


def test_evaluate_from_skips_earlier_evaluations(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    sets = [*SETS, "arms=static", "loop.evaluate_from=0.5", "evaluation.last=9"]
    summary = train(folder, load_config(TOY, sets=sets, environ={}), quiet(), lambda: False)
    evaluations = summary.arms["static"]["evaluations"]
    assert [numbers["step"] for numbers in evaluations] == [0, 3, 4, 5]
    rates = [numbers["success_rate"] for numbers in evaluations]
    assert summary.table[-1].success == pytest.approx(fmean(rates[1:]))


def test_evaluating_trained_tasks_does_not_change_the_run(done: Path, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    sets = [*SETS, "arms=static,coevolve", "evaluation.n_trained=6"]
    summary = train(folder, load_config(TOY, sets=sets, environ={}), quiet(), lambda: False)
    without = read_json(done / "summary.json")["arms"]
    for name, arm in summary.arms.items():
        assert arm["weights"] == without[name]["weights"]
        assert arm["env_steps"] == without[name]["env_steps"]
        for watched, numbers in zip(arm["evaluations"], without[name]["evaluations"], strict=True):
            own = {watched.pop(f"{what}_tasks_success") for what in ("warmup", "pool")}
            assert own <= {n / 6 for n in range(7)}
            assert watched == numbers
    assembly = Assembly(read_manifest(folder)[1])
    saved = Checkpoints(folder.checkpoints / "static").load_latest()
    assert saved is not None
    load_evaluation_weights(assembly.policy, saved.state)
    tasks = sorted(assembly.warmup_tasks(), key=lambda task: task.id)[:6]
    rate = assembly.evaluate(assembly.agent(assembly.policy).greedy(), tasks).success_rate
    last = [e for e in read_lines(folder.metrics) if e["event"] == "eval" and e["arm"] == "static"]
    assert rate == last[-1]["eval.warmup_tasks_success"]


def test_a_run_without_held_out_tasks_cannot_be_evaluated_on_them(finished: Path) -> None:
    with pytest.raises(ConfigError, match=r"benchmark\.hold_out"):
        evaluate_job(make_run_job(RunFolder(finished), "static", "held_out"))
