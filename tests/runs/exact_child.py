"""The ``coevo`` command with the toy benchmark and language models in float64."""

from __future__ import annotations

from typing import Any

import torch

from coevo_gym import cli
from coevo_gym.agents.lm import causal_lm
from coevo_gym.trainers import sharded_model
from tests import toy

load_model = causal_lm.load_model


def load_exact_model(path: str, device: torch.device, dtype: torch.dtype) -> Any:
    """Load a model in float64, so that the order of sums makes no difference that counts."""
    return load_model(path, device, torch.float64)


if __name__ == "__main__":
    causal_lm.load_model = sharded_model.load_model = load_exact_model
    toy.register()
    cli.main()
