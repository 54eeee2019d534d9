"""TRL in two processes that share a served session: whole groups, one pool, one checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

from coevo_gym.curricula.session.http_session import HTTPSession
from coevo_gym.trainers.adapters.checkpoint import FILE
from tests.adapters.conftest import ROOT, SCRIPTS
from tests.serve.standing import serve_toy

pytest.importorskip("trl")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

K, GROUPS, RANKS = 4, 3, 2
"""Three groups of four in two processes: the second group is split between them."""
A_STEP = K * GROUPS
WAIT_S = 900


SERVED = (
    *("--curriculum", "static", "--group-size", str(K), "--groups-per-step", str(GROUPS)),
    *("--initial-size", "12"),
)


class Training:
    """A training in two processes that has been started.

    Attributes:
        folder: where its checkpoints and the lines of its processes are.
    """

    def __init__(self, address: str, folder: Path, steps: int, *options: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(RANKS)]
        script = [SCRIPTS / "trl_ranks.py", address, folder, steps, GROUPS, *options]
        self._output = (folder / "output.txt").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, *launch, *map(str, script)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def read_lines(self) -> list[dict[str, Any]]:
        """Return what the processes have written so far, one after the other."""
        files = sorted(self.folder.glob("rank-*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Wait for something to happen while the training runs."""
        for _ in range(20 * WAIT_S):
            assert self._process.poll() is None, (self.folder / "output.txt").read_text()[-8000:]
            if true():
                return
            time.sleep(0.05)
        pytest.fail("the training does not get there")

    def wait(self) -> None:
        """Wait for the training to finish."""
        assert self._process.wait(WAIT_S) == 0, (self.folder / "output.txt").read_text()[-8000:]
        self._output.close()

    def kill(self) -> None:
        """Kill all processes of the training."""
        pids = [line["pid"] for line in self.read_lines() if "pid" in line]
        for pid in (self._process.pid, *pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(WAIT_S)
        self._output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self.kill()


def tasks_of_steps(lines: list[dict[str, Any]]) -> dict[int, Counter[str]]:
    """Count the episodes of each task in each step, over all processes."""
    steps: dict[int, Counter[str]] = {}
    for line in lines:
        if "step" in line:
            steps.setdefault(line["step"], Counter()).update(line["tasks"])
    return steps


def test_two_processes_share_groups_pool_and_checkpoint_and_survive_kills(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with serve_toy(tmp_path / "one", *SERVED) as (_, address):
        with Training(address, tmp_path / "whole", 4) as whole:
            whole.wait()
        check_training(whole, HTTPSession(address))
    with serve_toy(tmp_path / "two", *SERVED) as (server, address):
        session = HTTPSession(address, patience_s=WAIT_S)
        with Training(address, tmp_path / "killed", 4) as killed:
            killed.wait_until(lambda: session.ticket_counts["taken"] > A_STEP)
            server.kill()  # in the second step
            server.wait(WAIT_S)
            with serve_toy(tmp_path / "two", *SERVED, port=address.rpartition(":")[2]):
                killed.wait_until(lambda: session.ticket_counts["taken"] > 2 * A_STEP)
                killed.kill()  # in the third step, after its checkpoint
                counts = session.ticket_counts
                assert counts["reported"] >= 2 * A_STEP
                assert counts["given_back"] == counts["lapsed"] == counts["late"] == 0
                saved = json.loads((tmp_path / "killed" / "checkpoint-2" / FILE).read_text())
                assert (saved["ledger"]["n_groups"], saved["ledger"]["groups"]) == (2 * GROUPS, [])
                before = [line for line in killed.read_lines() if line.get("step", 0) < 2]
                for file in (tmp_path / "killed").glob("rank-*.jsonl"):
                    file.unlink()
                with Training(address, tmp_path / "killed", 4, "--resume") as resumed:
                    resumed.wait()
                assert session.metrics()["groups"] == 4 * GROUPS
                assert not session.outstanding_tickets
                after = [*before, *resumed.read_lines()]
                assert tasks_of_steps(after) == tasks_of_steps(whole.read_lines())
                check_weights(resumed)


def check_training(training: Training, session: HTTPSession) -> None:
    """Check a training that nothing has interrupted."""
    lines, counts = training.read_lines(), session.ticket_counts
    assert counts["taken"] == counts["reported"] == 4 * A_STEP
    assert session.metrics()["groups"] == 4 * GROUPS
    assert not session.outstanding_tickets
    steps = tasks_of_steps(lines)
    assert [sorted(tasks.values()) for tasks in steps.values()] == [[K] * GROUPS] * 4
    played = [line for line in lines if "step" in line]
    for step in steps:
        first, second = (set(line["tasks"]) for line in played if line["step"] == step)
        assert len(first & second) == 1, "one group is split between the processes"
    rewards = [reward for line in played for row in line["rewards"] for reward in row]
    assert 0 < sum(rewards) < len(rewards)
    check_weights(training)


def check_weights(training: Training) -> None:
    """Check that the processes end with the same weights."""
    ends = [line for line in training.read_lines() if "weights" in line]
    assert len(ends) == RANKS
    assert ends[0] == ends[1]
