"""Long work reports its progress, and commands that only look create nothing."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from coevo_gym.core.errors import BenchmarkNotInstalled
from coevo_gym.core.evolution import Round, Verdict
from coevo_gym.core.waiting import Patience, forbid_setup, is_setup_forbidden
from coevo_gym.curricula.explore import evolver
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.explorer import ScriptedExplorer
from coevo_gym.envs.appworld import builtin
from tests.toy import BENCHMARK, ToyEnv


def test_progress_is_logged_only_at_long_intervals(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    patience = Patience("evolution", first_s=3, every_s=10, clock=lambda: now)
    for second in range(25):
        now = float(second)
        patience.log_progress(f"task {second}")
    assert caplog.messages == [
        "evolution: task 3 (3 s) ...",
        "evolution: task 13 (13 s) ...",
        "evolution: task 23 (23 s) ...",
    ]


def test_progress_is_printed_without_logging_configuration() -> None:
    code = "from coevo_gym.core.waiting import Patience; Patience('a', first_s=0).log_progress('b')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stderr.startswith("a: b (")


@pytest.mark.parametrize("heard", [False, True])
def test_a_long_round_logs_progress_unless_a_listener_gets_its_verdicts(
    heard: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(evolver, "Patience", partial(Patience, first_s=0, every_s=0))
    verdicts: list[Verdict] = []
    explorer = ScriptedExplorer(BENCHMARK, make_env=ToyEnv)
    listener = verdicts.append if heard else None
    GatedEvolver(BENCHMARK, explorer, on_verdict=listener).run(Round.unguided(3, seed=1))
    messages = [message for message in caplog.messages if "of 3 tasks accepted" in message]
    assert bool(messages) is not heard
    assert bool(verdicts) is heard


def test_creating_the_built_in_world_is_announced_and_can_be_forbidden(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    roots: list[Path] = []
    monkeypatch.setenv("COEVO_HOME", str(tmp_path))
    monkeypatch.setattr(builtin, "engine_python", lambda: Path(sys.executable))
    monkeypatch.setattr(builtin, "_create_world", lambda python, root: roots.append(root))
    with forbid_setup(), pytest.raises(BenchmarkNotInstalled, match="`coevo install appworld`"):
        builtin.ensure_builtin_root()
    assert not is_setup_forbidden()
    assert not roots
    assert not list(tmp_path.iterdir())
    assert builtin.ensure_builtin_root() == roots[0]
    assert "Creating AppWorld's built-in world" in caplog.text


def test_forbid_setup_ends_with_its_scope() -> None:
    with suppress(ZeroDivisionError), forbid_setup():
        assert is_setup_forbidden()
        raise ZeroDivisionError
    assert not is_setup_forbidden()
