"""A causal language model that computes log-probabilities and can be trained and copied."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field

from coevo_gym.core.arithmetic import cpu_has_bf16
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import PolicyOutputs
from coevo_gym.core.task import FrozenModel
from coevo_gym.core.trajectory import Sample, Segment
from coevo_gym.provision import explain_missing

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Module, Parameter

    from coevo_gym.agents.nets import ValueHead

logger = logging.getLogger(__name__)

SLOW_BF16 = (
    "This CPU has no bf16 instructions, so bf16 takes about three times as long as fp32. Set "
    "policy.model.dtype to auto or float32."
)
NEEDS = ("A language model needs PyTorch, transformers and peft.", "train")
"""Arguments of :func:`coevo_gym.provision.explain_missing` for imports of these packages."""
HALF_ON = "cuda"
"""Device type that computes in bf16 by default."""
COMPILED_ON = "cuda"
"""Device type on which layers can be compiled."""


class LocalModelConfig(FrozenModel):
    """Settings for a language model on this machine."""

    path: str = Field(default="smollm2", min_length=1)
    """Folder or Hugging Face Hub ID of a transformers model, or name of a fetched model."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to run the model on; ``auto`` selects the GPU if there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute precision. ``auto`` selects ``bfloat16`` on a GPU and ``float32`` on a CPU. With
    ``bfloat16``, weights are stored in fp32; with LoRA, the base weights are stored in bf16 and the
    adapter in fp32. On a CPU with bf16 instructions (``avx512_bf16`` or ``amx_bf16``), bf16 takes
    about half the time; on others, it takes three times as long, and a warning says so. See
    ``docs/agents.md`` for the effect on accuracy."""
    max_context: int | None = Field(default=None, ge=2)
    """Maximum number of tokens in a sequence; None for the model's own limit."""
    pack_tokens: int = Field(default=16_384, ge=1)
    """Maximum number of tokens per forward pass; a longer sequence gets its own pass."""
    prefix_cache_gib: float = Field(default=4.0, ge=0)
    """Size in GiB of the key-value cache for past conversations, used when sampling with
    transformers. On a GPU, a quarter of the free memory is used if that is more. The cache lets
    each turn process only the new tokens. If it is too small, some conversations are kept and the
    others are processed again in each turn; with 0, all are."""


class ModelConfig(LocalModelConfig):
    """Settings for a language model and its training."""

    lora_rank: int = Field(default=0, ge=0)
    """Rank of a LoRA adapter on all linear layers except the head; 0 trains all weights. In
    mixture-of-experts models, only attention is adapted; experts and routers stay frozen."""
    lora_alpha: int = Field(default=32, ge=1)
    """LoRA scaling; the adapter is multiplied by ``lora_alpha / lora_rank``."""
    gradient_checkpointing: bool = False
    """True to store only each layer's input in a training forward pass and recompute the other
    activations in the backward pass. Training is about a third slower but needs only a fraction of
    the memory."""
    compile_layers: bool = False
    """True to compile the layers with ``torch.compile`` for updates on a GPU; this needs a C
    compiler. Updates are faster and need less memory, but the first ones take a few seconds
    longer."""
    shard: bool = False
    """With ``--processes``: True to split the trained model, its gradients, AdamW's moments and the
    reference over the processes (PyTorch's FSDP2), instead of a copy of each in every process. The
    first process also has the whole weights, to sample with them. One process ignores this."""


class LanguageModel:
    """A transformers model with its tokenizer and, if configured, a LoRA adapter.

    Dropout is disabled regardless of the model's config, because its noise would distort the ratio
    of new to old probabilities. Code that comes with a model is never run. The seed
    initialises the adapter.

    Attributes:
        value_lr: suitable learning rate for a value head.
        model: transformers model, including the adapter, so that it generates as the policy does.
            It is in evaluation mode outside updates.
        version: number of updates so far, set by the learner.

    Raises:
        ConfigError: if the settings do not fit this machine or this model.
        ImportError: if PyTorch, transformers or peft is not installed.
        ModelError: if the model does not exist, or cannot be trained on packed sequences.
    """

    value_lr = 1e-5
    model: Any
    tokenizer: Any

    def __init__(self, config: ModelConfig, *, seed: int = 0) -> None:
        with explain_missing(*NEEDS):
            import torch

            from coevo_gym.agents.lm import causal_lm, packing

        self.config = config
        self.version = 0
        device = causal_lm.pick_device(config.device)
        by_device = "bfloat16" if device.type == HALF_ON else "float32"
        self._half = (by_device if config.dtype == "auto" else config.dtype) == "bfloat16"
        if self._half and device.type == "cpu" and not cpu_has_bf16():
            logger.warning(SLOW_BF16)
        dtype = torch.bfloat16 if self._half and config.lora_rank else torch.float32
        loaded = causal_lm.load_model(config.path, device, dtype)
        with self._autocast(device):
            causal_lm.check_packing(loaded.model)
        if config.lora_rank:
            loaded = causal_lm.add_adapter(
                loaded, rank=config.lora_rank, alpha=config.lora_alpha, seed=seed
            )
        self.model, self.tokenizer, self._adapter = loaded
        if config.gradient_checkpointing:
            packing.enable_gradient_checkpointing(self.model)
        if config.compile_layers and device.type == COMPILED_ON:
            packing.compile_layers(self.model)
        self.max_context = self._resolve_max_context()

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        device: torch.device = self.model.device
        return device

    @property
    def n_parameters(self) -> int:
        """Number of model weights, excluding the adapter."""
        weights = self.model.named_parameters()
        return sum(weight.numel() for name, weight in weights if ".lora_" not in name)

    def logprobs(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of the sampled tokens under the current weights.

        Segments are packed into rows of at most ``pack_tokens`` tokens, with one forward pass each.
        Tokens after a segment's last sampled token are left out. On a CPU, prefixes shared by
        several segments of a row are computed once.

        Returns:
            (B, T) fp32 log-probabilities of the sampled positions of each segment, padded with 0 to
            the longest, and a (B, T) bool mask of valid entries. Both are on the CPU, even if the
            model is not; gradients flow back to the model.

        Raises:
            ConfigError: if a sample is not a segment, its first token is sampled (nothing
                predicts it), it is longer than ``max_context``, its temperature is not above 0,
                or an id is outside the vocabulary.
        """
        outputs = self._compute_outputs(samples)
        return outputs.logp, outputs.mask

    def logprobs_and_entropy(
        self, samples: Sequence[Sample], head: Module | None = None
    ) -> PolicyOutputs:
        """Compute :meth:`logprobs` and, in the same forward pass, (B, T) entropies and values.

        An entropy is that of the whole vocabulary at the segment's temperature, in fp32.
        """
        return self._compute_outputs(samples, head, entropy=True)

    def decode_ids(self, ids: Sequence[int]) -> str:
        """Decode token ids to text, including special tokens."""
        text = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return str(text)

    def make_value_head(self) -> ValueHead:
        """Create a head that estimates a token's value from the hidden state before the token."""
        from coevo_gym.agents.nets import ValueHead

        return ValueHead(self.model.config.get_text_config().hidden_size, self.device)

    def logprobs_and_values(
        self, samples: Sequence[Sample], head: Module
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute :meth:`logprobs` and, in the same forward pass, (B, T) fp32 values."""
        outputs = self._compute_outputs(samples, head)
        assert outputs.values is not None
        return outputs.logp, outputs.mask, outputs.values

    def _compute_outputs(
        self, samples: Sequence[Sample], head: Module | None = None, *, entropy: bool = False
    ) -> PolicyOutputs:
        """Return (B, T) log-probabilities, their mask, entropies (if requested) and values."""
        from torch import ones
        from torch.nn.utils.rnn import pad_sequence

        from coevo_gym.agents.lm.packing import pack

        segments = [self._require_segment(sample) for sample in samples]
        inputs = [_input_ids(segment) for segment in segments]
        outputs: dict[int, Sequence[Tensor]] = {}
        nonempty = [index for index, ids in enumerate(inputs) if ids]
        for row in pack([len(inputs[i]) for i in nonempty], self.config.pack_tokens):
            indices = [nonempty[i] for i in row]
            parts = self._compute_row_logprobs(
                [segments[i] for i in indices], [inputs[i] for i in indices], head, entropy
            )
            outputs.update(zip(indices, parts, strict=True))
        none = ones(0)
        rows = [outputs.get(index, (none, none, none)) for index in range(len(segments))]
        if not rows:
            empty = none.reshape(0, 0)
            return PolicyOutputs(empty, empty.bool(), empty, empty)
        masks = [ones(len(row[0])).bool() for row in rows]
        logps, entropies, values, mask = (
            pad_sequence([*one], batch_first=True) for one in (*zip(*rows, strict=True), masks)
        )
        return PolicyOutputs(
            logps, mask, entropies if entropy else None, None if head is None else values
        )

    def parameters(self) -> list[Parameter]:
        """Return the trainable weights: all weights, or only the adapter's if there is one."""
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    def train(self, mode: bool = True) -> None:
        """Switch training mode on or off, and with it any configured gradient checkpointing."""
        self.model.train(mode)

    def frozen_copy(self) -> LanguageModel | FrozenAdapter:
        """Return a copy of the current model without gradients.

        With an adapter, the copy does not store model weights. It runs this model with a copy of
        the current adapter, or without an adapter if it is still untrained.

        A model that computes in bf16 is copied in bf16. If its weights are bf16 numbers, as in most
        published models, the copy's log-probabilities equal those of an fp32 copy. Otherwise they
        differ by less than 0.1 nats per token on average: by 0.044 for SmolLM2-135M on a CPU, where
        merely computing in bf16 makes a difference of 0.041.
        """
        if self._adapter is not None:
            return FrozenAdapter(self)
        frozen = copy.copy(self)
        if self._half:
            from coevo_gym.agents.lm.causal_lm import half_copy, residual_in_fp32

            frozen.model = residual_in_fp32(half_copy(self.model))
        else:
            frozen.model = copy.deepcopy(self.model).eval().requires_grad_(False)
        return frozen

    def state_dict(self) -> dict[str, Any]:
        """Return the version and CPU copies of the trained weights (for LoRA, only the adapter)."""
        weights = {n: w.detach().to("cpu", copy=True) for n, w in self.trained_weights().items()}
        return {"version": self.version, "lora_rank": self.config.lora_rank, "weights": weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore the state from :meth:`state_dict`.

        Raises:
            ConfigError: if the state belongs to another model or adapter.
        """
        mine, saved, rank = self.trained_weights(), state["weights"], state["lora_rank"]
        wrong = [n for n in mine.keys() | saved.keys() if _shape(mine, n) != _shape(saved, n)]
        if wrong or rank != self.config.lora_rank:
            first = f" (first: {min(wrong)})" if wrong else ""
            raise ConfigError(
                f"The saved weights (lora_rank {rank}) do not fit {self.config.path!r} with "
                f"lora_rank {self.config.lora_rank}: {len(wrong)} weights differ{first}. Load them "
                "into the model that they were saved from."
            )
        self.load_weights((name, saved[name]) for name in mine)
        self.version = int(state["version"])
        return self

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy values into the weights with the given names, one at a time."""
        from torch import no_grad

        mine = self.trained_weights()
        with no_grad():
            for name, value in weights:
                mine[name].copy_(value)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the (name, tensor) pairs of a Hugging Face checkpoint, with the adapter merged.

        Samplers that store their own weights use this. ``lm_head.weight`` is included even if it is
        tied to the embedding. Weights not changed by an adapter are not copied.
        """
        from coevo_gym.agents.lm.causal_lm import checkpoint_weights

        return checkpoint_weights(self.model)

    def save_pretrained(self, folder: Path) -> None:
        """Save the tokenizer and the model in transformers' format, with the adapter merged."""
        from coevo_gym.agents.lm.causal_lm import merged_weights

        self.model.save_pretrained(folder, state_dict=dict(merged_weights(self.model)))
        self.tokenizer.save_pretrained(folder)

    def save_adapter(self, folder: Path) -> None:
        """Save the tokenizer and the adapter in PEFT's format.

        Raises:
            ConfigError: if there is no adapter, because all weights are trained.
        """
        if self._adapter is None:
            raise ConfigError("There is no adapter to save, because all weights are trained.")
        self._adapter.save_pretrained(str(folder))
        self.tokenizer.save_pretrained(folder)

    def save_adapter_weights(self, folder: Path) -> None:
        """Save the adapter alone in PEFT's format, for a sampler that has the model."""
        assert self._adapter is not None
        # By default, PEFT asks the hub about the embeddings, which are not adapted.
        self._adapter.save_pretrained(str(folder), save_embedding_layers=False)

    def _compute_row_logprobs(
        self,
        segments: Sequence[Segment],
        inputs: Sequence[Sequence[int]],
        head: Module | None,
        entropy: bool,
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield log-probabilities, entropies and values at each segment's sampled positions.

        What is not wanted is 0.
        """
        import torch

        from coevo_gym.agents.lm.causal_lm import token_logprobs, token_logprobs_and_entropy
        from coevo_gym.agents.lm.packing import packed_hidden

        counts = [len(segment.logprobs) for segment in segments]
        places, targets, start = [], [], 0
        for segment, ids in zip(segments, inputs, strict=True):
            sampled = [p for p, is_sampled in enumerate(segment.sampled) if is_sampled]
            places += [start + p - 1 for p in sampled]  # the previous token predicts each token
            targets += [segment.ids[p] for p in sampled]
            start += len(ids)
        temperatures = torch.tensor([segment.temperature for segment in segments])
        with self._autocast(self.device):
            hidden = packed_hidden(self.model, inputs)  # (N, H)
            before = hidden[torch.tensor(places, device=self.device)]
            weight, bias = self._head_weights()
            inputs_of_head = (
                before,
                weight,
                bias,
                torch.tensor(targets, device=self.device),
                temperatures.repeat_interleave(torch.tensor(counts)).to(self.device),
            )
            if entropy:
                logps, entropies = token_logprobs_and_entropy(*inputs_of_head)
            else:
                logps = token_logprobs(*inputs_of_head)
                entropies = torch.zeros_like(logps)
        values = torch.zeros_like(logps) if head is None else head(before)  # in fp32
        columns = (torch.split(column.cpu(), counts) for column in (logps, entropies, values))
        return zip(*columns, strict=True)

    def _head_weights(self) -> tuple[Tensor, Tensor | None]:
        """Return the (V, H) weight of the LM head, and its (V,) bias or None."""
        from coevo_gym.agents.lm.causal_lm import head_of

        head = head_of(self.model)
        return head.weight, head.bias

    def use_adapter(self, weights: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Return a context manager that uses other adapter weights; {} disables the adapter."""
        from coevo_gym.agents.lm.causal_lm import use_adapter_weights

        assert self._adapter is not None
        return use_adapter_weights(self._adapter, weights)

    def _autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        import torch

        return torch.autocast(device.type, torch.bfloat16, enabled=self._half)

    def trained_weights(self) -> Mapping[str, Tensor]:
        """Return the weights and buffers that :meth:`state_dict` saves, by name."""
        from coevo_gym.agents.lm.causal_lm import unique_weights

        weights = dict(unique_weights(self.model))
        if self._adapter is None:
            return weights
        return {name: weight for name, weight in weights.items() if ".lora_" in name}

    def _resolve_max_context(self) -> int:
        own: int | None = getattr(
            self.model.config.get_text_config(), "max_position_embeddings", None
        )
        wanted = self.config.max_context or own
        if wanted is None:
            raise ConfigError(
                f"{self.config.path!r} does not specify its context length. Set max_context."
            )
        if own is not None and wanted > own:
            raise ConfigError(
                f"max_context is {wanted}, but {self.config.path!r} supports only {own} tokens."
            )
        return wanted

    def _require_segment(self, sample: Sample) -> Segment:
        if not isinstance(sample, Segment):
            raise ConfigError(
                "A language model can only be trained on token segments, got "
                f"{type(sample).__name__}."
            )
        if not sample.ids or not any(sample.sampled):
            return sample
        vocabulary = self.model.get_input_embeddings().num_embeddings
        if min(sample.ids) < 0 or max(sample.ids) >= vocabulary:
            wrong = next(i for i in sample.ids if not 0 <= i < vocabulary)
            raise ConfigError(
                f"Token {wrong} is outside the vocabulary of {self.config.path!r}, which has "
                f"{vocabulary} tokens. The tokens may come from another model."
            )
        if sample.sampled[0]:
            raise ConfigError(
                "The first token of a segment is sampled, but no earlier token predicts it. "
                "Start the segment with a prompt of at least one token."
            )
        if len(sample.ids) > self.max_context:
            raise ConfigError(
                f"A segment has {len(sample.ids)} tokens, but the model supports at most "
                f"{self.max_context}."
            )
        if not sample.temperature > 0:
            raise ConfigError(
                f"A segment was sampled at temperature {sample.temperature}. Learning requires "
                "samples drawn at a temperature above 0."
            )
        return sample


class FrozenAdapter:
    """A frozen copy of an adapter that shares its base model with a :class:`LanguageModel`.

    If the adapter is untrained, the copy runs without one.
    """

    def __init__(self, of: LanguageModel) -> None:
        self.version = of.version
        self._of = of
        self._weights = {
            name: weight.detach().clone() for name, weight in of.trained_weights().items()
        }
        if not any(bool(w.any()) for name, w in self._weights.items() if ".lora_B." in name):
            self._weights = {}

    def logprobs(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        """Return log-probabilities as in :meth:`LanguageModel.logprobs`, without gradients."""
        from torch import no_grad

        with no_grad(), self._of.use_adapter(self._weights):
            return self._of.logprobs(samples)

    def parameters(self) -> list[Parameter]:
        """Return an empty list, because a frozen adapter is not trained."""
        return []

    def train(self, mode: bool = True) -> None:
        """Do nothing, because a frozen adapter has no training mode."""

    def frozen_copy(self) -> FrozenAdapter:
        """Return this object, because a frozen adapter does not change."""
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return CPU copies of the frozen adapter weights, or {} if the adapter was untrained."""
        return {name: weight.to("cpu", copy=True) for name, weight in self._weights.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore the state from :meth:`state_dict`."""
        self._weights = {name: weight.to(self._of.device) for name, weight in state.items()}
        return self


def _input_ids(segment: Segment) -> tuple[int, ...]:
    """Return the ids that precede the last sampled token."""
    last = max((place for place, is_sampled in enumerate(segment.sampled) if is_sampled), default=0)
    return segment.ids[:last]


def _shape(weights: Mapping[str, Tensor], name: str) -> Any:
    return weights[name].shape if name in weights else None
