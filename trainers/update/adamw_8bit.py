"""AdamW with its moments in 8 bits, by torchao. Import this module lazily: it requires torchao."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from coevo_gym.provision import explain_missing
from coevo_gym.trainers.settings import NEEDS_TORCHAO


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Hide log messages below errors, such as torchao's about kernels for other GPUs."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)


with explain_missing(NEEDS_TORCHAO, "torchao"), _without_warnings():
    from torchao.optim import AdamW8bit
    from torchao.optim.subclass_8bit import OptimState8bit


class EightBitAdamW(AdamW8bit):  # type: ignore[misc]
    """torchao's AdamW with 8-bit moments, whose state consists of plain tensors.

    Each block of 256 values has a common scale. Tensors with fewer than 4,096 values, or with a
    number of values that is not a multiple of 256, keep fp32 moments. A GPU needs a C compiler,
    because torchao compiles the step; a CPU runs the step without compiling it.

    Source: 8-bit optimizers (Dettmers et al., 2021).
    """

    def __init__(self, groups: Sequence[Mapping[str, Any]], *, weight_decay: float) -> None:
        super().__init__([dict(group) for group in groups], weight_decay=weight_decay)

    def step(self, closure: None = None) -> None:
        """Update the weights that have a gradient."""
        for group in self.param_groups:
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32)
        with self._stance():
            super().step()

    def _stance(self) -> AbstractContextManager[Any]:
        if self.param_groups[0]["params"][0].device.type == "cpu":
            stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
            return stance
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return the state with codes and scales in place of torchao's 8-bit tensors."""
        state: dict[str, Any] = super().state_dict()
        return state | {"state": {i: _map_values(_pack, one) for i, one in state["state"].items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        states = {i: _map_values(_unpack, one) for i, one in state_dict["state"].items()}
        super().load_state_dict({**state_dict, "state": states})


def _map_values(function: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: function(value) for name, value in values.items()}


def _pack(value: Any) -> Any:
    """Return an 8-bit tensor as plain tensors, because it cannot be copied or loaded safely."""
    if not isinstance(value, OptimState8bit):
        return value
    return {"codes": value.codes, "scale": value.scale, "signed": value.signed}


def _unpack(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    codes, scale = value["codes"], value["scale"]
    block_size = codes.numel() // scale.numel()
    moment = OptimState8bit.zeros(
        codes.shape, value["signed"], block_size, codes.device, dtype=torch.float32
    )
    moment.codes.copy_(codes)
    moment.scale.copy_(scale)
    return moment
