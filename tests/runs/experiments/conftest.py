from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coevo_gym import cli
from coevo_gym.runs.experiments.records import CellRecord

TABLE = Path(__file__).with_name("toy_table.toml")
Coevo = Callable[..., str]


def make_record(arm: str, **measures: Any) -> CellRecord:
    """The record of a cell with one arm that solves half of the tasks."""
    summary = {"table": [{"name": arm, "success": 0.5}], "arms": {arm: {}}, "final": {}}
    return CellRecord(f"{arm}-1", {"config": {}}, summary, {"seconds": {"round": 0.0}, **measures})


@pytest.fixture
def coevo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Coevo:
    """Runs the command in a folder of its own; what it printed, or what was not for people."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0, only_out: bool = False) -> str:
        monkeypatch.setattr(sys, "argv", ["coevo", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        done = capsys.readouterr()
        assert exit_.value.code == code, done.out + done.err
        return done.out if only_out else done.out + done.err

    return run
