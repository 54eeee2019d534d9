"""Sinks: destinations for the metrics of a training run, by name.

A sink has the same name as the package it needs, and as the extra that installs this package.
"""

from collections.abc import Mapping

__all__ = ["DEFAULT", "NAMES"]

NAMES: Mapping[str, str] = {
    "tensorboard": "coevo_gym.runs.sinks.tensorboard:TensorBoardSink",
    "wandb": "coevo_gym.runs.sinks.wandb:WandbSink",
}
DEFAULT = ""
