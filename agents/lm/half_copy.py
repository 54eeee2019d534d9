"""Copies of models in bf16, to sample with or to refer to. Import it lazily: it needs PyTorch."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def half_copy(model: ModuleT) -> ModuleT:
    """Copy a model with parameters in bf16 and without gradients; buffers keep their precision.

    No copy in the model's own precision is made on the way.
    """
    half = {
        id(parameter): nn.Parameter(parameter.detach().to(torch.bfloat16, copy=True), False)
        for parameter in model.parameters()
    }
    return copy.deepcopy(model, half).eval()


@torch.no_grad()
def renew(half: nn.Module, model: nn.Module) -> None:
    """Copy the weights of the model, as they are now, into its :func:`half_copy`."""
    for mine, theirs in zip(half.parameters(), model.parameters(), strict=True):
        mine.copy_(theirs)
