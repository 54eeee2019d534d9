"""Linear layers in oneDNN's blocked layout, for sampling on a CPU.

A pass of sampling multiplies a few vectors by all weights. PyTorch's default library, MKL, first
rearranges the weights in each product. oneDNN can keep them rearranged. On one thread of an AMD
EPYC, the products of SmolLM2's layers then take .8 of the time for one row, .4 for 3, .6 for 8,
.7 for 32, and .9 for 512 (``bench/lm_sampling.py``). One or two rows are padded to 4, because 4
rows take less time. Import this module lazily: it requires PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from coevo_gym.core.arithmetic import freeze_arithmetic


class BlockedWeights:
    """A copy of the weights of a model's linear layers in oneDNN's blocked layout.

    It does not follow later changes of the weights.

    Args:
        model: a model on a CPU.
        dtype: dtype of the products.
        head: the LM head, whose products are exact: it is copied only if its weight is fp32.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, head: nn.Linear) -> None:
        self._forwards = [
            (vars(layer), _make_product(layer, torch.float32 if layer is head else dtype))
            for layer in model.modules()
            if type(layer) is nn.Linear
            and (layer is not head or head.weight.dtype == torch.float32)
        ]

    @contextmanager
    def use(self) -> Iterator[None]:
        """Let the layers multiply by this copy in a ``with`` block, without gradients."""
        for attributes, forward in self._forwards:
            attributes["forward"] = forward
        try:
            yield
        finally:
            for attributes, _ in self._forwards:
                del attributes["forward"]


def can_block(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if products in a dtype can use blocked weights on a device.

    Portable arithmetic excludes them, because oneDNN rounds differently on each processor.
    """
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if device.type != "cpu" or not has_onednn:
        return False
    if freeze_arithmetic().kind == "portable":
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


@torch.no_grad()
def _make_product(layer: nn.Linear, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Return a function that replaces a layer's ``forward``."""
    # torch.compile uses these operators for constant weights. There are no public ones.
    operators = torch.ops.mkldnn
    weight = operators._reorder_linear_weight(layer.weight.detach().to(dtype))
    bias = None if layer.bias is None else layer.bias.detach().to(dtype)

    def multiply(hidden: Tensor) -> Tensor:
        rows = hidden.shape[-2]
        if rows <= 2:
            hidden = functional.pad(hidden, (0, 0, 0, 4 - rows))
        product: Tensor = operators._linear_pointwise(
            hidden.to(dtype), weight, bias, "none", [], ""
        )
        return product[..., :rows, :]

    return multiply
