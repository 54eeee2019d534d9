"""The sink that sends metrics to Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping

from coevo_gym.runs.sinks.sink import SinkArm

PROJECT = "coevo_gym"
"""The project for runs if ``WANDB_PROJECT`` is not set."""


class WandbSink:
    """A sink that sends an arm's metrics to a wandb run, grouped with the runs of the other arms.

    wandb's own environment variables set the destination: ``WANDB_PROJECT``, ``WANDB_ENTITY``, and
    ``WANDB_MODE=offline`` to write files into the run's folder that ``wandb sync`` uploads later.
    Apart from metrics, the sink sends the settings without secrets. It sends no data about the
    machine, the command or the code.

    Raises:
        ImportError: if wandb is not installed.
        wandb.Error: if no user is logged in, or the service is unreachable.
    """

    def __init__(self, arm: SinkArm) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            group=arm.run,
            name=f"{arm.run}/{arm.arm}",
            id=arm.id,
            resume="allow",
            reinit="create_new",
            dir=str(arm.folder),
            config=dict(arm.config),
            settings=wandb.Settings(
                console="off",
                disable_code=True,
                disable_git=True,
                disable_job_creation=True,
                login_timeout=60,  # an unanswered login prompt must not block the run
                save_code=False,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Send the metrics; see :class:`~coevo_gym.runs.sinks.sink.Sink`."""
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Finish the wandb run; see :class:`~coevo_gym.runs.sinks.sink.Sink`."""
        self._run.finish()
