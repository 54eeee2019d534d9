"""The ``coevo`` command with the toy benchmark and language models in float64."""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from coevo_gym import cli
from coevo_gym.agents.lm import causal_lm
from coevo_gym.trainers import sharded_model
from tests import toy

_load_model = causal_lm.load_model


def load_exact_model(path: str, device: torch.device, dtype: torch.dtype) -> Any:
    """Load a model in float64, so that rounding does not tell the order of sums apart."""
    return _load_model(path, device, torch.float64)


def normalise(self: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Compute the norm without transformers' rounding to float32."""
    variance = hidden.pow(2).mean(-1, keepdim=True)
    weight: torch.Tensor = self.weight
    return weight * (hidden * torch.rsqrt(variance + self.variance_epsilon))


def use_float64() -> None:
    """Make language models in this process compute in float64."""
    causal_lm.load_model = sharded_model.load_model = load_exact_model
    LlamaRMSNorm.forward = normalise  # type: ignore[method-assign]


if __name__ == "__main__":
    use_float64()
    toy.register()
    cli.main()
