"""Runs on several processes: as one process, killed, stopped, resumed, and refused."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from coevo_gym.core.errors import ConfigError, WorkersFailed
from coevo_gym.runs.config import load_config
from coevo_gym.runs.planning.processes import check_processes
from coevo_gym.store import approvals
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.folder import read_json, read_lines
from coevo_gym.trainers import launcher
from coevo_gym.trainers.update.ranks import RankLost
from tests.runs.conftest import ROOT, TOY, Child, Coevo, train_tiny_llama
from tests.runs.test_train import OF_PROCESS

SETTINGS = {
    "arms": "coevolve",
    "policy.kind": "transformers",
    "policy.chat.max_answer_tokens": 32,
    "warmup.n_tasks": 8,
    "warmup.max_epochs": 20,
    "warmup.lr": 3e-3,
    "warmup.holdout": 0,
    "curriculum.initial_size": 4,
    "curriculum.growth.every_groups": 2,
    "learner.old_logprobs": "recomputed",
    "learner.outcome": "score",
    "learner.lr": 1e-3,
    "learner.kl_coef": 1e-2,
    "loop.max_steps": 3,
    "loop.groups_per_step": 2,
    "loop.evolve_every_steps": 1,
    "evaluation.n_tasks": 2,
}
TOLERANCE = 1e-8
"""Largest difference in a final weight, in float64; training moves some by 1e-3."""


class Command(Child):
    """A running ``coevo`` command with language models in float64, and the ranks it has started."""

    def __init__(self, cwd: Path, *arguments: str) -> None:
        # A process of its own, because the ranks are started with the same command line.
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.runs.exact_child", *arguments],
            cwd=cwd,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def pid_of(self, rank: int) -> int:
        """The process of a rank."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                variables = (folder / "environ").read_text().split("\0")
            except OSError:
                continue
            if parent == self.process.pid and f"RANK={rank}" in variables:
                return int(folder.name)
        pytest.fail(f"there is no rank {rank}:\n{self.text}")


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A small run of a tiny Llama on the toy benchmark."""
    return train_tiny_llama(tmp_path_factory.mktemp("model"), SETTINGS)


@pytest.fixture(scope="module")
def cwd(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with ``runs/one``, which one process has trained."""
    cwd = tmp_path_factory.mktemp("runs")
    done = Command(cwd, *arguments, "--name", "one")
    assert done.end() == 0, done.text
    return cwd


def state_of(run: Path, part: str = "coevolve") -> dict[str, Any]:
    saved = Checkpoints(run / "checkpoints" / part, keep=1).load_latest()
    assert saved is not None
    return saved.state


def flat(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in weights.values()])


def assert_same_end(one: Path, other: Path) -> None:
    """Check that two runs ended with nearly the same weights, and with the same results."""
    ends = [state_of(run) for run in (one, other)]
    first, second = (flat(end["policy"]["weights"]) for end in ends)
    assert first.dtype == torch.float64
    assert float((first - flat(state_of(one, "warm-up")["policy"]["weights"])).abs().max()) > 1e-3
    assert float((first - second).abs().max()) < TOLERANCE
    assert ends[0].keys() == ends[1].keys()
    summaries = [read_json(run / "summary.json") for run in (one, other)]
    for summary in summaries:
        del summary["name"], summary["arms"]["coevolve"]["weights"]
    assert summaries[0] == summaries[1]
    steps = [
        [line for line in read_lines(run / "metrics.jsonl") if line["event"] == "step"]
        for run in (one, other)
    ]
    assert len(steps[0]) == len(steps[1]) == SETTINGS["loop.max_steps"]
    for mine, theirs in zip(*steps, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine.keys() - OF_PROCESS - {name for name in mine if name.endswith("_s")}:
            assert theirs[name] == pytest.approx(mine[name], abs=1e-6), name


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True])
def test_two_processes_end_as_one_does(cwd: Path, arguments: list[str], shard: bool) -> None:
    name = "shards" if shard else "copies"
    settings = ["--set", f"policy.model.shard={str(shard).lower()}"]
    done = Command(cwd, *arguments, *settings, "--name", name, "--processes", "2")
    assert done.end() == 0, done.text
    assert_same_end(cwd / "runs" / "one", cwd / "runs" / name)
    assert done.text.count("so clip_low and clip_high have no effect") <= 1, "not once per rank"


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "then"), [(1, 2), (0, 1)])
def test_a_killed_rank_ends_the_run_which_can_be_resumed(
    cwd: Path, arguments: list[str], rank: int, then: int
) -> None:
    name = f"killed-{rank}"
    run = Command(cwd, *arguments, "--name", name, "--processes", "2")
    run.wait_for("train coevolve: 1/3")
    pids = [run.pid_of(one) for one in (0, 1)]
    os.kill(pids[rank], signal.SIGKILL)
    assert run.end() == 1
    sentence = f"Rank {rank} (process {pids[rank]}) was killed by SIGKILL"
    assert run.text.count(sentence) == 1
    assert "Traceback" not in run.text
    assert run.text.splitlines()[-1] == f"Continue with: coevo resume {name} --processes 2"
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    resumed = Command(cwd, "resume", name, "--processes", str(then))
    assert resumed.end() == 0, resumed.text
    assert_same_end(cwd / "runs" / "one", cwd / "runs" / name)


@pytest.mark.slow
def test_ctrl_c_stops_after_the_step_and_two_processes_go_on_from_one(
    cwd: Path, arguments: list[str]
) -> None:
    alone = Command(cwd, *arguments, "--name", "stopped")
    alone.wait_for("train coevolve: 1/3")
    alone.process.send_signal(signal.SIGINT)
    assert alone.end() == 130, alone.text
    both = Command(cwd, "resume", "stopped", "--processes", "2")
    both.wait_for("train coevolve: 2/3")
    both.process.send_signal(signal.SIGINT)
    assert both.end() in (0, 130), both.text  # the last step may have begun
    if not (cwd / "runs" / "stopped" / "summary.json").exists():
        assert "Continue with: coevo resume stopped --processes 2" in both.text
        last = Command(cwd, "resume", "stopped", "--processes", "2")
        assert last.end() == 0, last.text
    assert_same_end(cwd / "runs" / "one", cwd / "runs" / "stopped")


@pytest.mark.slow
def test_ranks_stop_when_the_process_that_started_them_is_killed(
    cwd: Path, arguments: list[str]
) -> None:
    run = Command(cwd, *arguments, "--set=loop.max_steps=8", "--name", "left", "--processes", "2")
    run.wait_for("train coevolve: 1/8")
    ranks = [os.pidfd_open(run.pid_of(one)) for one in (0, 1)]
    run.process.kill()
    run.end()  # the ranks hold its output open until they end
    assert "Stopped and saved. Continue with: coevo resume left --processes 2" in run.text
    for rank in ranks:
        waiting = select.poll()
        waiting.register(rank, select.POLLIN)
        assert waiting.poll(60_000), "it is still running"
        os.close(rank)


@pytest.mark.slow
def test_an_error_of_rank_0_is_told_once_as_by_one_process(cwd: Path, arguments: list[str]) -> None:
    again = Command(cwd, *arguments, "--name", "one", "--processes", "2")
    assert again.end() == 2
    assert again.text.count("already contains a run") == 1
    assert "Rank" not in again.text


@pytest.mark.slow
def test_an_error_of_all_ranks_is_told_once(cwd: Path, arguments: list[str]) -> None:
    diverging = [*arguments, "--set=warmup.lr=1e300", "--name", "diverged", "--processes", "2"]
    run = Command(cwd, *diverging)
    assert run.end() == 1
    assert run.text.count("TrainingDiverged: Imitation diverged in epoch 2") == 1
    assert "Rank" not in run.text


@pytest.mark.slow
def test_a_rank_that_fails_is_named_with_its_error(cwd: Path, arguments: list[str]) -> None:
    failing = [*arguments, "--set=loop.max_steps=2", "--name", "failed", "--processes", "2"]
    run = subprocess.run(
        [sys.executable, "-m", "tests.runs.failing_rank", *failing],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 1
    *_, last, hint = run.stderr.splitlines()
    assert last == "WorkersFailed: Rank 1 failed, so the run has ended: MemoryError: full"
    assert hint == "Continue with: coevo resume failed --processes 2"
    assert run.stderr.count("MemoryError: full") == 2, "and the end of rank 1's traceback"


LLAMA = ["policy.kind=transformers", "policy.model.path=/nowhere", "policy.model.device=cpu"]


@pytest.mark.parametrize(
    ("sets", "n", "message"),
    [
        ([], "0", "'--processes': Input should be greater than or equal to 1"),
        ([], "-1", "'--processes': Input should be greater than or equal to 1"),
        ([], "2", "policy.kind = 'tiny' is trained by one process, but --processes is 2."),
        ([*LLAMA, "learner.kind=ppo", "policy.model.shard=true"], "2", "sharded model"),
        ([*LLAMA, "learner.optimizer=adamw_8bit", "policy.model.shard=true"], "2", "adamw_8bit"),
        ([*LLAMA, "policy.model.device=cuda"], "2", "PyTorch cannot find a GPU"),
    ],
)
def test_what_several_processes_cannot_do_is_refused_before_anything_is_written(
    coevo: Coevo, monkeypatch: pytest.MonkeyPatch, sets: list[str], n: str, message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = sorted(Path("runs").iterdir())
    options = [f"--set={one}" for one in sets]
    text = coevo("train", TOY, "--name=never", *options, "--processes", n, code=2)
    assert message in text
    assert sorted(Path("runs").iterdir()) == before


def test_processes_do_not_accept_a_cost_that_the_user_was_not_asked_about(
    coevo: Coevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "run_ranks", lambda n: pytest.fail("started"))
    paid = [*LLAMA, "explorer.kind=model", "explorer.model.endpoint.model=gpt-4.1-mini"]
    options = [f"--set={one}" for one in paid]
    text = coevo("train", TOY, "--name=never", *options, "--processes", "2", code=2)
    assert "To accept the cost, pass --yes" in text


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(TOY, sets=[*LLAMA, "policy.model.device=auto"]).config
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"--processes is 2, but this machine has 1 GPU, "):
        check_processes(config, 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_processes(config, 2)


def test_the_engine_of_vllm_is_refused_and_its_servers_need_gpus_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sets = [*LLAMA, "policy.model.device=auto"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(ConfigError, match=r"Set policy\.kind = 'vllm_server'\."):
        check_processes(load_config(TOY, sets=[*sets, "policy.kind=vllm"]).config, 2)
    served = [*sets, "policy.kind=vllm_server"]
    check_processes(load_config(TOY, sets=served).config, 2)
    config = load_config(TOY, sets=[*served, "policy.servers.replicas=2"]).config
    with pytest.raises(ConfigError, match=r"2 vLLM servers need 4 GPUs, but this machine has 3"):
        check_processes(config, 2)


LONE = """
from coevo_gym.trainers.settings import LearnerSettings


class Lone:
    settings = LearnerSettings

    def advantages(self, groups, notes=()): ...
    def update(self, groups, advantages): ...
    def state_dict(self, *, reference=True): ...
    def load_state_dict(self, state): ...
"""


def test_a_learner_that_does_not_share_its_updates_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "_approved", set(approvals._approved))
    own = tmp_path / "own.py"
    own.write_text(LONE)
    config = load_config(TOY, sets=[*LLAMA, f"learner={own}:Lone"]).config
    with pytest.raises(ConfigError, match="cannot be trained by several processes"):
        check_processes(config, 2)


@pytest.fixture
def error_files(tmp_path: Path) -> dict[int, Path]:
    return {rank: tmp_path / f"{rank}.json" for rank in (0, 1)}


def test_the_first_cause_is_blamed(
    error_files: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(rank: int, error: Exception) -> None:
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(error_files[rank]))
        launcher.ErrorHandler().record_exception(error)

    def judge(*codes: int) -> int:
        return launcher._judge(dict(enumerate(codes)), {0: 10, 1: 11}, error_files)

    assert judge(130) == 130
    assert judge(2, launcher._LOST) == 2, "rank 0 has printed its error"
    record(0, RankLost("gone"))
    with pytest.raises(WorkersFailed, match=r"Rank 1 \(process 11\) was killed by SIGSEGV"):
        judge(launcher._LOST, -11)
    with pytest.raises(WorkersFailed, match="Rank 0 failed, so the run has ended: RankLost: gone"):
        judge(launcher._LOST)
    with pytest.raises(WorkersFailed, match="Rank 1 failed, so the run has ended: exit code 3"):
        judge(launcher._LOST, 3)
    record(1, MemoryError("full"))
    with pytest.raises(WorkersFailed, match="Rank 1 failed, so the run has ended: MemoryError"):
        judge(launcher._LOST, 1)
