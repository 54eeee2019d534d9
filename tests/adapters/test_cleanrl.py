"""The one-file PPO in the style of CleanRL."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RECIPE = Path(__file__).parents[2] / "docs" / "trainers" / "cleanrl_ppo.py"
SIGNALS = ("signals_forgetting", "signals_boundary", "signals_rare")


def run(folder: Path, updates: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What is printed about each update, and at the end."""
    command = [sys.executable, str(RECIPE), "--checkpoint", "shop.pt", "--updates", str(updates)]
    settings = ["--num-envs", "4", "--num-steps", "48", "--evolve-every", "5"]
    done = subprocess.run(
        [*command, *settings], cwd=folder, capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    *rows, end = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return rows, end


@pytest.mark.slow
def test_the_recipe_trains_evaluates_and_resumes_with_its_curriculum(tmp_path: Path) -> None:
    rows, end = run(tmp_path, 6)
    last = rows[-1]
    assert last["rounds"] >= 2
    assert last["evolved"] > 0
    assert last["pool_size"] > rows[0]["pool_size"]
    assert sum(last[name] for name in SIGNALS) > 0
    assert 0 <= end["evaluated"] <= 1
    assert {name: last[name] for name in end if name in last} == {
        name: end[name] for name in end if name in last
    }  # evaluation is not counted
    more, _ = run(tmp_path, 1)
    assert more[0]["update"] == last["update"] + 1
    assert more[0]["groups"] > last["groups"]
    assert more[0]["pool_size"] >= last["pool_size"]
