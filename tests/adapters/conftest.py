"""The environments of trainers, as `coevo install` has made them for the user."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.trainers.adapters.trainer import TRAINERS, find_trainer
from tests.conftest import USERS_HOME

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
Told = list[dict[str, Any]]
RunIn = Callable[..., Told]


@pytest.fixture
def run_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RunIn:
    """Runs something with a trainer's Python; what it prints as JSON, line by line.

    It runs in a folder of the test's own. The test is skipped where the trainer is not installed.
    """

    def run(trainer: str, *arguments: object, timeout_s: float = 3000) -> Told:
        with monkeypatch.context() as patch:
            patch.setenv("COEVO_HOME", str(USERS_HOME))
            installation = find_trainer(TRAINERS[trainer])
        if not installation.python or installation.stale:
            pytest.skip(f"{TRAINERS[trainer].title}: {installation.stale}")
        shared = {"PYTHONPATH": str(ROOT)} if TRAINERS[trainer].extra else {}
        done = subprocess.run(
            [installation.python, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, **shared, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    return run
