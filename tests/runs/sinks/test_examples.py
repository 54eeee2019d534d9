"""The sinks that the documentation shows, with the real packages in environments of their own.

Their pins fit no other environment, so each is installed by itself; what it keeps is read back with
its own reader.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[3] / "docs" / "sinks"
DRAW = """
import sys
from pathlib import Path
from types import SimpleNamespace

from {module} import {name}

for first, last, resumed in ((0, 2, False), (3, 4, True)):
    arm = SimpleNamespace(run="a-run", arm="mine", id="0a1b2c3d", folder=Path("."),
                          config={{"learner": {{"lr": 0.25}}}}, resumed=resumed)
    sink = {name}(arm)
    for step in range(first, last + 1):
        sink.log({{"train/loss": 1.0 / (step + 1), "curriculum/pool_size": 8.0}}, step)
        if step % 2 == 0:
            sink.log({{"eval/success_rate": 0.1 * step}}, step)
    sink.close()
"""


def read_sink(folder: Path, package: str, module: str, name: str, read: str) -> Any:
    """What a sink of the documentation has kept of two lives of an arm, as JSON."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=600)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True, timeout=1200)
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "PYTHONPATH": str(EXAMPLES),
        "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "TRACKIO_DIR": str(folder / "trackio"),
    }
    out = ""
    for code in (DRAW.format(module=module, name=name), read):
        done = subprocess.run(
            [python, "-c", code],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        out = done.stdout
    return json.loads(out.strip().splitlines()[-1])


def test_the_mlflow_example_stores_one_run_per_arm(tmp_path: Path) -> None:
    read = """
import json
from mlflow import MlflowClient
client = MlflowClient()
experiment = client.get_experiment_by_name("a-run")
runs = client.search_runs([experiment.experiment_id])
points = {name: [(m.step, m.value) for m in client.get_metric_history(runs[0].info.run_id, name)]
          for name in ("train/loss", "eval/success_rate", "curriculum/pool_size")}
print(json.dumps([len(runs), runs[0].info.run_name, runs[0].info.status, points]))
"""
    n, name, status, points = read_sink(
        tmp_path, "mlflow-skinny==3.17.2", "mlflow_sink", "MLflowSink", read
    )
    assert (n, name, status) == (1, "mine", "FINISHED")
    assert points["train/loss"] == [[step, 1.0 / (step + 1)] for step in range(5)]
    assert points["eval/success_rate"] == [[step, 0.1 * step] for step in (0, 2, 4)]
    assert len(points["curriculum/pool_size"]) == 5


def test_the_trackio_example_stores_one_run_per_arm(tmp_path: Path) -> None:
    read = """
import json
from trackio.sqlite_storage import SQLiteStorage
runs = SQLiteStorage.get_runs("a-run")
print(json.dumps([runs, SQLiteStorage.get_logs("a-run", runs[0])], default=str))
"""
    runs, logs = read_sink(tmp_path, "trackio", "trackio_sink", "TrackioSink", read)
    assert runs == ["mine-0a1b2c3d"]
    loss = [(row["step"], row["train/loss"]) for row in logs if "train/loss" in row]
    assert loss == [(step, pytest.approx(1.0 / (step + 1))) for step in range(5)]
    rates = [(row["step"], row["eval/success_rate"]) for row in logs if "eval/success_rate" in row]
    assert rates == [(step, pytest.approx(0.1 * step)) for step in (0, 2, 4)]
