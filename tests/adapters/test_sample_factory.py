"""Sample Factory practises what a server gives out; nothing of ours but two files is beside it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.remote import TicketClient
from tests.adapters.conftest import RunIn

pytestmark = pytest.mark.slow
SIGNALS = ("signals_forgetting", "signals_boundary", "signals_rare")
TRAIN = (
    *("-m", "coevo_sample_factory", "--experiment=shop", "--train_dir=runs", "--num_workers=1"),
    *("--num_envs_per_worker=4", "--worker_num_splits=2", "--rollout=16", "--batch_size=128"),
    *("--learning_rate=0.001", "--set_workers_cpu_affinity=False", "--save_every_sec=5"),
)
EVALUATE = (
    *("-m", "coevo_sample_factory", "evaluate", "--experiment=shop", "--train_dir=runs"),
    *("--no_render", "--max_num_episodes=4"),
)


@contextmanager
def served(db: Path, patch: pytest.MonkeyPatch) -> Iterator[TicketClient]:
    """A server with a session of its own, which what runs in here finds."""
    pytest.importorskip("starlette", reason="pip install coevo-gym[serve]")
    settings = ["--group-size", "4", "--evolve-every", "10", "--port", "0", "--db", str(db)]
    command = [sys.executable, "-m", "coevo_gym.cli", "serve", "webshop", *settings]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        address = line.split(" at ")[1].split(";")[0]
        patch.setenv("COEVO_SERVER", address)
        yield TicketClient(address)
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=600)


def test_policy_and_curriculum_are_saved_and_resumed_together(
    run_in: RunIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path / "first.db", monkeypatch) as tickets:
        curriculum = last_metrics(run_in("sample-factory", *TRAIN, "--train_for_env_steps=1500"))
        assert curriculum["rounds"] >= 2
        assert curriculum["evolved"] > 0
        assert curriculum["pool_size"] > 100
        assert sum(curriculum[name] for name in SIGNALS) > 0
        assert reported(tmp_path) >= 1500

        before = ticket_counts(tickets)
        (evaluated,) = run_in("sample-factory", *EVALUATE)
        assert evaluated["split"] == "val"
        assert ticket_counts(tickets) == before

    # A server that knows nothing of it goes on where the policy's checkpoint does.
    with served(tmp_path / "second.db", monkeypatch) as tickets:
        steps = reported(tmp_path)
        more = last_metrics(
            run_in("sample-factory", *TRAIN, f"--train_for_env_steps={steps + 300}")
        )
        assert reported(tmp_path) >= steps + 300
        assert more["groups"] > curriculum["groups"]
        assert more["pool_size"] >= curriculum["pool_size"]
        assert tickets.metrics()["tickets_unknown"] == 0


def ticket_counts(tickets: TicketClient) -> dict[str, float]:
    """How many tickets were taken, and what became of them."""
    numbers = {k: v for k, v in tickets.metrics().items() if k.startswith("tickets_")}
    assert numbers
    return numbers


def last_metrics(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What was last said about the curriculum."""
    metrics: dict[str, Any] = lines[-1]["curriculum"]
    return metrics


def reported(folder: Path) -> int:
    """Env steps of the newest checkpoint, beside which its curriculum is."""
    checkpoints = folder / "runs" / "shop" / "checkpoint_p0"
    newest = max(checkpoints.glob("checkpoint_*.pth"))
    assert (checkpoints / f"{newest.stem.replace('checkpoint', 'curriculum')}.json").is_file()
    assert len(list(checkpoints.glob("curriculum_*"))) <= len(list(checkpoints.glob("*.pth")))
    return int(newest.stem.split("_")[-1])
