"""RLlib and our own workers practise one session in a Ray actor."""

from __future__ import annotations

import pytest

from tests.adapters.conftest import SCRIPTS, RunIn

pytestmark = pytest.mark.slow
SIGNALS = ("signals_forgetting", "signals_boundary", "signals_rare")


def test_rllib_trains_on_a_curriculum_and_restores_it_from_a_checkpoint(run_in: RunIn) -> None:
    *steps, evaluated, restored, resumed = run_in("rllib", SCRIPTS / "rllib_run.py", 4)
    metrics = steps[-1]["metrics"]
    assert metrics["rounds"] >= 2
    assert metrics["evolved"] > 0
    assert metrics["pool_size"] > steps[0]["metrics"]["pool_size"]
    assert sum(metrics[name] for name in SIGNALS) > 0
    assert all(step["evaluated"] for step in steps)
    assert evaluated["counts"] == evaluated["after_evaluation"]
    assert restored["empty"]["pool_size"] == 0
    assert restored["same"]
    assert restored["iteration"] == len(steps)
    assert resumed["iteration"] == len(steps) + 1
    assert resumed["metrics"]["groups"] > metrics["groups"]
    assert resumed["counts"]["unknown"] == 0


def test_killing_a_node_loses_only_its_leases(run_in: RunIn) -> None:
    worked, trained, killed, after, over = run_in("rllib", SCRIPTS / "ray_cluster.py")
    assert len(worked["workers"]) == 2  # a worker on each node
    assert set(worked["workers"].values()) == {12}
    assert worked["reported"] == worked["taken"] == 24
    assert len(set(trained["runners"])) == 2  # and an env runner
    assert trained["groups"] > 6
    assert killed["lost"] == 1
    assert after["lapsed"] >= 1
    assert after["groups"] > trained["groups"]
    for counts in (killed, after):
        ends = sum(counts[how] for how in ("reported", "given_back", "lapsed", "out"))
        assert counts["taken"] == ends
        assert counts["unknown"] == counts["double"] == 0
    assert over["over"]
