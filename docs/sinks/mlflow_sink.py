"""A sink that sends training metrics to MLflow: use ``--set sinks=mlflow_sink:MLflowSink``.

MLflow's own environment variables set the destination: ``MLFLOW_TRACKING_URI`` is a server or a
file. Each run becomes an experiment, and each arm becomes a run of this experiment.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coevo_gym.runs.sinks import SinkArm

MARK = "coevo_gym.arm"
"""Tag that identifies an arm's MLflow run when the arm is resumed."""


class MLflowSink:
    """A sink for the metrics of one arm."""

    def __init__(self, arm: SinkArm) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient()
        known = self._client.get_experiment_by_name(arm.run)
        experiment = known.experiment_id if known else self._client.create_experiment(arm.run)
        runs = self._client.search_runs([experiment], f"tags.`{MARK}` = '{arm.id}'")
        if runs:
            self._run_id = runs[0].info.run_id
            self._client.update_run(self._run_id, "RUNNING")
        else:
            run = self._client.create_run(experiment, tags={MARK: arm.id}, run_name=arm.arm)
            self._run_id = run.info.run_id
            self._client.log_dict(self._run_id, dict(arm.config), "settings.json")

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Send metrics; MLflow accepts 1,000 at once, and a step has a few dozen."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in numbers.items()]
        self._client.log_batch(self._run_id, metrics)

    def close(self) -> None:
        """Close the MLflow run when the arm finishes or its process stops."""
        self._client.set_terminated(self._run_id)
