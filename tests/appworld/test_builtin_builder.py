"""The builder of the built-in world leaves no processes behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coevo_gym.envs.appworld import builtin
from coevo_gym.envs.appworld.engine import prefix
from tests.appworld.test_engine import wait_for_end

SCRIPT = Path(builtin.__file__).parent / "builtin_world" / "main.py"
START = (
    "import os, subprocess, sys\n"
    "made = subprocess.Popen([*sys.argv[1:], str(os.getpid())])\n"
    "print(made.pid, flush=True)\n"
    "made.wait()\n"
)


def children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["maker", "parent"])
def test_workers_end_if_the_builder_or_its_parent_is_killed(
    root: Path, tmp_path: Path, killed: str
) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", START, str(prefix.engine_python()), str(SCRIPT), str(tmp_path)],
        env=prefix.engine_environment(tmp_path),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None
        maker = int(parent.stdout.readline())
        while not (workers := children(maker)):
            assert parent.poll() is None, "it ended before it had workers"
            time.sleep(0.1)
        os.kill(maker if killed == "maker" else parent.pid, signal.SIGKILL)
        for process in (maker, *workers):
            wait_for_end(process)
    finally:
        if parent.poll() is None:
            os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()
