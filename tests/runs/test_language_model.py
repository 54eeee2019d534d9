"""Runs whose policy is a language model: whole, cut short and resumed, and with a real model."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from coevo_gym.core.arithmetic import PORTABLE
from coevo_gym.runs.experiments.measures import measure_run
from coevo_gym.runs.experiments.numbers import numbers_of
from coevo_gym.runs.experiments.records import read_record
from coevo_gym.store.folder import RunFolder, read_json, read_lines
from tests.conftest import USERS_HOME
from tests.runs.conftest import Child, train_tiny_llama
from tests.runs.test_train import NewChild, assert_same
from tests.toy import PROMPT

SMALL = {
    "arms": "coevolve",
    "policy.kind": "transformers",
    "policy.chat.max_answer_tokens": 32,
    "warmup.n_tasks": 8,
    "warmup.max_epochs": 30,
    "warmup.lr": 3e-3,
    "warmup.holdout": 0,
    "curriculum.initial_size": 4,
    "curriculum.growth.every_groups": 2,
    "learner.old_logprobs": "recomputed",
    "learner.outcome": "score",
    "loop.max_steps": 2,
    "loop.groups_per_step": 2,
    "loop.evolve_every_steps": 1,
    "evaluation.n_tasks": 2,
}
STEPS = 2
WITH_STYLE = PROMPT.replace('"thinking"]', '"thinking", "style"]').replace(
    "{%- endif %}", "{%- endif %}{{- ' Begin with a line Thought.' if style == 'react' }}", 1
)


@pytest.fixture(scope="module", autouse=True)
def native_arithmetic() -> Iterator[None]:
    """Runs of language models compute like those of users, by default with native arithmetic."""
    with pytest.MonkeyPatch.context() as patch:
        for name in PORTABLE:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A small run of a tiny Llama on the toy benchmark."""
    return train_tiny_llama(tmp_path_factory.mktemp("model"), SMALL, WITH_STYLE)


@pytest.fixture(scope="module")
def straight(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of such a run that nothing disturbed."""
    cwd = tmp_path_factory.mktemp("straight")
    done = Child(cwd, *arguments)
    assert done.end() == 0, done.text
    (cwd / "output.txt").write_text(done.text)
    return cwd / "runs" / "toy-run"


@pytest.mark.slow
def test_the_policy_before_training_is_measured_for_the_rows_that_show_it(
    straight: Path, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "toy-run")
    shutil.copytree(straight, folder.path)
    names = ("warm-up", "react", "trials")
    record = measure_run(folder, "coevolve", ("types",), {}, names)
    assert record["warm-up"].keys() == {"types", "react", "trials"}
    folders = {path.name for path in (folder.path / "measured").iterdir()}
    assert folders == {"warm-up-react", "warm-up-trials"}
    assert (
        read_json(folder.path / "measured/warm-up-react/config.json")["settings"]["chat"]["style"]
        == "react"
    )
    for name in ("react", "trials"):
        numbers = numbers_of(read_record(folder), name)
        assert {"success", "reported", "score"} <= numbers.keys()
        assert all(0 <= number <= 1 for number in numbers.values())
    (folder.path / "cell.json").unlink()
    assert measure_run(folder, "coevolve", ("types",), {}, names) == record, "it is kept"


@pytest.mark.slow
def test_a_language_model_run_prints_progress_and_time_estimates(straight: Path) -> None:
    lines = (straight.parents[1] / "output.txt").read_text().splitlines()
    messages = [line for line in lines if line.startswith("warm-up: ")]
    # Steps of the optimiser, one in each of 30 epochs.
    assert re.match(
        r"warm-up: 3/30, epoch 3 of 30, loss \d\.\d{3}, speed [\d,]+ tokens/s", messages[0]
    )
    assert messages[-1].startswith("warm-up: 30/30, ")
    for ahead, left in (
        ("evaluate warm-up: 2 episodes × up to ", "steps: about "),
        ("train coevolve: 2 learner steps × ", "steps: without learning, about "),
    ):
        (estimate,) = (line for line in lines if line.startswith(ahead))
        assert left in estimate
    (last,) = (line for line in lines if line.startswith("train coevolve: 2/2"))
    assert " steps, " in last
    assert " tokens" in last


def test_a_run_trains_a_language_model_and_records_its_versions(straight: Path) -> None:
    manifest = read_json(straight / "manifest.json")
    assert manifest["model"].startswith("transformers:")
    assert [one["kind"] for one in manifest["arithmetic"]] == ["native"]
    assert manifest["prompt"]["name"] == "toy"
    assert len(manifest["prompt"]["hash"]) == 64
    assert {"torch", "transformers", "peft"} <= set(manifest["versions"])
    steps = [line for line in read_lines(straight / "metrics.jsonl") if line["event"] == "step"]
    assert len(steps) == STEPS
    assert all(line["tokens"] > line["tokens_sampled"] > 0 for line in steps)
    assert all(line["grad_norm"] > 0 for line in steps)
    assert "coevolve" in (straight / "report.html").read_text()
    summary = read_json(straight / "summary.json")
    assert [row["name"] for row in summary["table"]] == ["random", "warm-up", "coevolve"]


@pytest.mark.slow
def test_language_model_episodes_can_span_updates(
    arguments: list[str], child: NewChild, tmp_path: Path
) -> None:
    """The loss corrects for tokens that older weights have sampled."""
    sets = {"loop.rollout": "async", "loop.max_staleness": 1, "rollout.max_envs": 10}
    sets |= {"arms": "static", "loop.max_steps": 3, "learner.old_logprobs": "recorded"}
    done = child(*arguments, *(f"--set={key}={value}" for key, value in sets.items()))
    assert done.end() == 0, done.text
    lines = read_lines(tmp_path / "runs" / "toy-run" / "metrics.jsonl")
    steps = [line for line in lines if line["event"] == "step"]
    assert [line["groups"] for line in steps] == [2.0] * 3
    assert steps[0]["stale_share"] == 0
    stale = [line for line in steps if line["stale_share"] > 0]
    assert stale
    assert all(line["importance"] == pytest.approx(1.0, abs=0.5) for line in stale)


@pytest.mark.slow
def test_a_killed_language_model_run_ends_like_an_uninterrupted_one(
    straight: Path, arguments: list[str], child: NewChild, tmp_path: Path
) -> None:
    cut = child(*arguments)
    cut.wait_for("train coevolve: 1/2")
    cut.process.kill()
    cut.end()
    resumed = child("resume", "toy-run")
    assert resumed.end() == 0, resumed.text
    assert_same(straight, tmp_path / "runs" / "toy-run")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
def test_a_run_ended_in_its_warm_up_resumes_from_the_last_epoch(
    straight: Path, arguments: list[str], child: NewChild, tmp_path: Path, how: signal.Signals
) -> None:
    cut = child(*arguments)
    cut.wait_for("warm-up: 9/30")
    cut.process.send_signal(how)
    assert cut.end() == (130 if how is signal.SIGINT else -how), cut.text
    run = tmp_path / "runs" / "toy-run"
    (saved,) = (run / "checkpoints" / "warm-up" / "epochs").glob("step-*.pt")
    assert int(saved.name[5:11]) >= 8
    resumed = child("resume", "toy-run")
    assert resumed.end() == 0, resumed.text
    assert "warm-up: 3/30" not in resumed.text
    assert "warm-up: 12/30" in resumed.text
    assert_same(straight, run)
    assert not list((run / "checkpoints" / "warm-up").glob("epochs"))


def test_the_arms_of_a_language_model_run_can_be_evaluated_later(
    straight: Path, child: NewChild
) -> None:
    again = Child(straight.parents[1], "eval", "toy-run", "--policy", "coevolve", "--json")
    assert again.end() == 0, again.text
    summary = json.loads(again.text[again.text.index("{") :])
    (row,) = (r for r in read_json(straight / "summary.json")["table"] if r["name"] == "coevolve")
    assert summary["success"] == row["success"]
    assert summary["env_steps"] == row["env_steps"]


REAL = {
    "arms": "coevolve",
    "policy.kind": "transformers",
    "policy.chat.max_answer_tokens": 16,
    "benchmark.max_steps": 6,
    "warmup.n_tasks": 0,
    "curriculum.initial_size": 2,
    "rollout.group_size": 2,
    "learner.lr": 1e-6,
    "learner.kl_coef": 0,
    "learner.epochs": 1,
    "learner.outcome": "score",
    "loop.max_steps": 2,
    "loop.groups_per_step": 1,
    "evaluation.n_tasks": 1,
}


@pytest.fixture
def real_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own models and benchmarks, and no way to a hub."""
    monkeypatch.setenv("COEVO_HOME", str(USERS_HOME))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("OMP_NUM_THREADS")


@pytest.mark.slow
@pytest.mark.usefixtures("real_home")
@pytest.mark.parametrize("benchmark", ["webshop", "alfworld"])
def test_a_real_model_is_evaluated_and_trained_for_two_steps(
    benchmark: str, child: NewChild, tmp_path: Path
) -> None:
    fetched = child("model", "fetch", "smollm2")
    assert fetched.end() == 0, fetched.text
    few = ["benchmark.max_steps=2", "policy.chat.max_answer_tokens=16", "evaluation.n_tasks=2"]
    evaluated = child(
        *("eval", benchmark, "--policy", "transformers:smollm2", "--json"),
        *(f"--set={item}" for item in few),
    )
    assert evaluated.end() == 0, evaluated.text
    assert json.loads(evaluated.text[evaluated.text.index("{") :])["n_tasks"] == 2
    settings = REAL | {"benchmark": benchmark}
    trained = child("train", "quickstart", *(f"--set={k}={v}" for k, v in settings.items()))
    assert trained.end() == 0, trained.text
    lines = read_lines(tmp_path / "runs" / "quickstart" / "metrics.jsonl")
    steps = [line for line in lines if line["event"] == "step"]
    assert [line["step"] for line in steps] == [1, 2]
    assert all(line["tokens_sampled"] > 0 for line in steps)
