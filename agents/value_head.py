"""A value head that predicts returns from a policy's hidden states (requires PyTorch)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ValueHead(nn.Module):
    """A linear fp32 layer with one output. Its initial weights are zero."""

    def __init__(self, width: int, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, device=device))
        self.bias = nn.Parameter(torch.zeros((), device=device))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return fp32 value estimates for (..., width) hidden states of any precision."""
        return hidden.float() @ self.weight + self.bias
