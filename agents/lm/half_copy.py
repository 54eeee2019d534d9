"""A copy of a model's weights in bf16, to sample with. Import it lazily: it needs PyTorch."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def half_copy(model: ModuleT) -> ModuleT:
    """A copy with parameters in bf16 and without gradients; buffers keep their precision."""
    half = copy.deepcopy(model).eval().requires_grad_(False)
    for parameter in half.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return half


@torch.no_grad()
def renew(half: nn.Module, model: nn.Module) -> None:
    """Copy the weights of the model, as they are now, into its :func:`half_copy`."""
    for mine, theirs in zip(half.parameters(), model.parameters(), strict=True):
        mine.copy_(theirs)
