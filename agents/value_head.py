"""What a policy expects to earn, read from its hidden states. This module needs PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ValueHead(nn.Module):
    """A linear layer with one output, in fp32; it says 0 until it is trained, and draws nothing.

    Args:
        width: of a hidden state.
        device: where it computes.
    """

    def __init__(self, width: int, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, device=device))
        self.bias = nn.Parameter(torch.zeros((), device=device))

    def forward(self, hidden: Tensor) -> Tensor:
        """Values (...) of hidden states (..., width), whatever their precision is."""
        return hidden.float() @ self.weight + self.bias
