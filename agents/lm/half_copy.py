"""Copies of models in bf16, for sampling or as a reference. Requires PyTorch; import it lazily."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def half_copy(model: ModuleT) -> ModuleT:
    """Copy a model with parameters in bf16 and without gradients; buffers keep their precision.

    No intermediate copy in the model's own precision is made.
    """
    half = {
        id(parameter): nn.Parameter(parameter.detach().to(torch.bfloat16, copy=True), False)
        for parameter in model.parameters()
    }
    return copy.deepcopy(model, half).eval()


@torch.no_grad()
def renew(half: nn.Module, model: nn.Module) -> None:
    """Copy the current weights of the model into its :func:`half_copy`."""
    for mine, theirs in zip(half.parameters(), model.parameters(), strict=True):
        mine.copy_(theirs)
