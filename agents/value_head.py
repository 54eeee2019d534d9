"""A value head that predicts returns from a policy's hidden states. Requires PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ValueHead(nn.Module):
    """A linear layer with one output, in fp32; initially 0, without random numbers."""

    def __init__(self, width: int, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, device=device))
        self.bias = nn.Parameter(torch.zeros((), device=device))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return values (...) of hidden states (..., width), in any precision."""
        return hidden.float() @ self.weight + self.bias
