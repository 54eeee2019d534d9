"""Sinks: destinations for the metrics of a training run, looked up by name.

A sink has the name of the package it needs, which is also the name of the extra that installs it.
"""

from collections.abc import Mapping

__all__ = ["DEFAULT", "NAMES"]

NAMES: Mapping[str, str] = {
    "tensorboard": "coevo_gym.runs.sinks.tensorboard:TensorBoardSink",
    "wandb": "coevo_gym.runs.sinks.wandb:WandbSink",
}
DEFAULT = ""
