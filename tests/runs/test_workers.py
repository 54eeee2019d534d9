"""A run whose engines run in worker processes is the same run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.runs.conftest import TOY, Child
from tests.runs.test_train import assert_same


def test_a_run_with_worker_processes_equals_one_without(
    child: Callable[..., Child], finished: Path, tmp_path: Path
) -> None:
    run = child("train", TOY, "--set", "rollout.workers=2")
    assert run.end() == 0, run.text
    assert_same(tmp_path / "runs" / "toy-run", finished)
