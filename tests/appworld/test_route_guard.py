"""The guard lets requests in to one API, and every API can be reached through it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from coevo_gym.envs.appworld.engine import engine_pool as pool
from coevo_gym.envs.appworld.engine import prefix
from tests.appworld.route_guard_script import PATHS

SCRIPT = Path(__file__).with_name("route_guard_script.py")


@pytest.mark.slow
def test_the_guard_admits_requests_to_one_api_at_a_time(root: Path, tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(root / "data")
    done = subprocess.run(
        [prefix.engine_python(), "-s", SCRIPT, Path(pool.__file__).parents[1]],
        env=prefix.engine_environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    refused = [405] * len(PATHS)
    assert json.loads(done.stdout) == {
        "astray": [],
        "closed": refused,
        "open": [500, 500, *refused[2:]],
        "closed again": refused,
    }
