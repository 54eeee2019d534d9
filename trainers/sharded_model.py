"""A language model whose weights, gradients and optimiser state are split over all ranks."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Partial
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from coevo_gym.agents.lm.causal_lm import head_of, load_model, residual_in_fp32
from coevo_gym.agents.lm.language_model import FrozenAdapter, LanguageModel, ModelConfig
from coevo_gym.trainers.update.ranks import full_tensor, shard_like


class ShardedModel(LanguageModel):
    """A :class:`LanguageModel` that is sharded with FSDP2 and cannot sample.

    All ranks create it together, and call each of its methods together. Its state has whole
    tensors, as that of any other model. A call takes one forward pass, regardless of
    ``pack_tokens``, because each pass needs every rank.
    """

    def __init__(self, config: ModelConfig, *, seed: int = 0) -> None:
        super().__init__(config.model_copy(update={"pack_tokens": sys.maxsize}), seed=seed)
        _shard(self.model)

    def frozen_copy(self) -> LanguageModel | FrozenAdapter:
        """Return a frozen copy, which is sharded as well."""
        if self._adapter is not None:
            return FrozenAdapter(self)
        frozen = copy.copy(self)
        dtype = torch.bfloat16 if self._half else self.model.dtype
        model = load_model(self.config.path, self.device, dtype).model.requires_grad_(False)
        frozen.model = _shard(residual_in_fp32(model) if self._half else model)
        frozen.load_weights(self.whole_weights())
        return frozen

    def state_dict(self) -> dict[str, Any]:
        """Return the version and CPU copies of the whole trained weights."""
        weights = {name: weight.to("cpu", copy=True) for name, weight in self.whole_weights()}
        return {"version": self.version, "lora_rank": self.config.lora_rank, "weights": weights}

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Gather the trained weights from all ranks, one at a time, with their names."""
        for name, weight in self.trained_weights().items():
            yield name, full_tensor(weight.detach())

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy values into the weights with the given names, one at a time.

        Every rank passes whole tensors, and keeps its shards of them.
        """
        mine = self.trained_weights()
        super().load_weights((name, shard_like(value, mine[name])) for name, value in weights)

    @contextmanager
    def use_adapter(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Use other adapter weights in a ``with`` block; {} disables the adapter.

        Values are copied, because FSDP reads the memory of the weights that it sharded. No
        activations may be kept for a backward pass.
        """
        assert self._adapter is not None
        if not weights:
            with self._adapter.disable_adapter():
                yield
            return
        mine = self.trained_weights()
        before = {name: mine[name].detach().clone() for name in weights}
        try:
            LanguageModel.load_weights(self, weights.items())  # these are shards
            yield
        finally:
            LanguageModel.load_weights(self, before.items())

    def _head_weights(self) -> tuple[Tensor, Tensor | None]:
        head = head_of(self.model)
        bias: Any = head.bias
        return _gather(head.weight), None if bias is None else _gather(bias)


def _shard(model: PreTrainedModel) -> PreTrainedModel:
    """Shard a model in place over all ranks: each layer, the rest of the body, and the LM head."""
    mesh = init_device_mesh(model.device.type, (dist.get_world_size(),))
    head, embeddings = head_of(model), cast("torch.nn.Embedding", model.get_input_embeddings())
    is_tied = head.weight is embeddings.weight
    layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    for module in (*layers, model.base_model, *([] if is_tied else [head])):
        # Between passes, all weights are shards, so that they can be saved and updated.
        sharded: FSDPModule = fully_shard(module, mesh=mesh, reshard_after_forward=True)
        # The loss is divided by the size of the whole batch, so gradients are summed.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    if is_tied:
        head.weight = embeddings.weight  # sharding has replaced the parameter of the embeddings
    return model


def _gather(weight: Tensor) -> Tensor:
    """Return the whole of a sharded weight of the LM head, whose gradient is summed over ranks.

    The learner reads the head's weight without calling the head, so FSDP does not gather it.
    """
    assert isinstance(weight, DTensor)
    whole: Tensor = weight.full_tensor(grad_placements=[Partial("sum")])
    return whole
