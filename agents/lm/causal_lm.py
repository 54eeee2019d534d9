"""Functions that load, adapt, check and save a transformers model for :class:`LanguageModel`.

The log-probabilities of tokens are computed from its LM head, in chunks to save memory. Import this
module lazily: it requires PyTorch, transformers and peft.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear, LoraLayer
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as transformers_logging

from coevo_gym.agents.lm.packing import packed_hidden
from coevo_gym.agents.lm.stored_models import resolve_model
from coevo_gym.core.errors import ConfigError, ModelError

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def half_copy(model: ModuleT) -> ModuleT:
    """Return a bf16 copy of a model, without gradients. Buffers keep their precision.

    No intermediate copy in the model's own precision is made.
    """
    half = {
        id(parameter): nn.Parameter(parameter.detach().to(torch.bfloat16, copy=True), False)
        for parameter in model.parameters()
    }
    return copy.deepcopy(model, half).eval()


def residual_in_fp32(half: PreTrainedModel) -> PreTrainedModel:
    """Make a bf16 model sum its layers' outputs in fp32 under autocast, as an fp32 model does.

    Its embeddings in bf16 would make the sum bf16, too.
    """
    half.get_input_embeddings().register_forward_hook(_output_to_fp32)
    return half


def _output_to_fp32(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    return output.float()


@torch.no_grad()
def update_half_copy(half: nn.Module, model: nn.Module) -> None:
    """Copy the model's current weights into its :func:`half_copy`."""
    for mine, theirs in zip(half.parameters(), model.parameters(), strict=True):
        mine.copy_(theirs)


_LOGIT_SETTINGS = (
    "final_logit_softcapping",
    "lm_head_multiplier",
    "logit_scale",
    "logits_scaling",
)


class Loaded(NamedTuple):
    """A model, its tokenizer and, if there is one, the adapter that wraps the model."""

    model: PreTrainedModel
    tokenizer: Any
    adapter: PeftModel | None


def pick_device(name: str) -> torch.device:
    """Return the PyTorch device for a setting. ``auto`` selects the GPU if there is one.

    Raises:
        ConfigError: if the setting is ``cuda`` and PyTorch cannot find a GPU.
    """
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise ConfigError(
            "device is 'cuda', but PyTorch cannot find a GPU. Set device to 'auto' or 'cpu', or "
            "install a CUDA build of PyTorch."
        )
    return torch.device("cuda" if name != "cpu" and has_cuda else "cpu")


def load_model(path: str, device: torch.device, dtype: torch.dtype) -> Loaded:
    """Load a tokenizer, and a model in evaluation mode with dropout disabled.

    Raises:
        ModelError: if the model cannot be loaded.
    """
    source = resolve_model(path)
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        _disable_dropout(config)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        with _hide_progress_bars():
            model: Any = AutoModelForCausalLM.from_pretrained(
                source, config=config, dtype=dtype, trust_remote_code=False
            )
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(
            f"Could not load a language model from {path!r}: {error}\nPass a folder with "
            "config.json, the weights and a tokenizer, or a Hugging Face Hub model ID, or run "
            "`coevo model fetch smollm2` for a small model."
        ) from error
    return Loaded(model.to(device).eval(), tokenizer, None)


@contextmanager
def _hide_progress_bars() -> Iterator[None]:
    """Hide transformers' progress bars in a ``with`` block, to keep the status line readable."""
    had_bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if had_bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _disable_dropout(config: Any) -> None:
    """Set all dropout rates to 0, because dropout noise would distort probability ratios."""
    for name, value in list(vars(config).items()):
        if isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
            setattr(config, name, 0.0)
        elif hasattr(value, "model_type"):
            _disable_dropout(value)


def add_adapter(loaded: Loaded, *, rank: int, alpha: int, seed: int) -> Loaded:
    """Freeze the model and add a LoRA adapter in fp32 to all linear layers except the head.

    The experts of a mixture, which transformers stores in one tensor per layer, and its routers are
    not linear layers: they stay frozen, without an adapter. PEFT's "all-linear" would adapt them.

    Source: LoRA (Hu et al., 2021).

    Raises:
        ModelError: if PEFT also adapts modules whose weights cannot be merged.
    """
    head = head_of(loaded.model)
    settings = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=[
            name
            for name, module in loaded.model.named_modules()
            if isinstance(module, torch.nn.Linear | Conv1D) and module is not head
        ],
        bias="none",
        task_type="CAUSAL_LM",
    )
    devices = [loaded.model.device] if loaded.model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        adapter = get_peft_model(loaded.model, settings)
    assert isinstance(adapter, PeftModel)
    for name, module in loaded.model.named_modules():
        if isinstance(module, LoraLayer) and not isinstance(module, Linear):
            raise ModelError(
                f"{type(loaded.model).__name__} does not support LoRA adapters: PEFT would also "
                f"adapt {name}, which is not a linear layer. Set lora_rank to 0, or use a model "
                "whose MLPs are either all dense or all mixture-of-experts (Qwen3-4B, "
                "Qwen3-30B-A3B)."
            )
    return loaded._replace(adapter=adapter.eval())


@contextmanager
def use_adapter_weights(adapter: PeftModel, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Use the given adapter weights in a ``with`` block. Empty weights disable the adapter.

    The parameters stay the same objects, and activations kept for a backward pass are not changed,
    so pending gradients are computed correctly.
    """
    if not weights:
        with adapter.disable_adapter():
            yield
        return
    parameters = dict(adapter.get_base_model().named_parameters())
    before = {name: parameters[name].data for name in weights}
    try:
        for name, weight in weights.items():
            parameters[name].data = weight
        yield
    finally:
        for name, weight in before.items():
            parameters[name].data = weight


def head_of(model: PreTrainedModel) -> torch.nn.Linear:
    """Return the model's LM head.

    Raises:
        ModelError: if the head is not a linear layer, or the model changes the logits after it.
    """
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    config = model.config.get_text_config()
    changed = [name for name in _LOGIT_SETTINGS if getattr(config, name, None) not in (None, 1)]
    if not isinstance(head, torch.nn.Linear) or changed:
        why = f"its config sets {', '.join(changed)}" if changed else "it has no linear LM head"
        raise ModelError(
            f"{type(model).__name__} cannot be trained: {why}, but log-probabilities are computed "
            "from the head's logits. Use a model such as Llama, Qwen2, Qwen3 or Mistral."
        )
    return head


@torch.no_grad()
def check_packing(model: PreTrainedModel) -> None:
    """Check, on a few tokens, that packing sequences does not change their logits.

    Raises:
        ModelError: if the logits differ, because the trained and sampled models would differ.
    """
    head = head_of(model)
    ids = [token % head.out_features for token in range(3, 100, 4)]
    before, alone = ids[:19], ids[19:]  # long enough to be computed once for both sequences
    together = [before, alone, ids]
    inputs = [torch.tensor([one], device=model.device) for one in together[1:]]
    own = torch.cat([model(input_ids=one).logits[0] for one in inputs])
    packed = head(packed_hidden(model, together)[len(before) :])
    gap = (own.float() - packed.float()).norm() / own.float().norm()
    if not gap.item() < (1e-3 if own.dtype == torch.float32 else 0.1):
        raise ModelError(
            f"{type(model).__name__} gives different logits when sequences share a row (relative "
            f"difference {gap.item():.1e}), so it cannot be trained on packed sequences. Use "
            "a model with plain attention, such as Llama, Qwen2, Qwen3 or Mistral."
        )


def unique_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield each parameter and persistent buffer once, under the first of its names."""
    seen = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


@torch.no_grad()
def merged_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield each weight's name and tensor, with adapters merged in fp32. Nothing else is copied."""
    adapted = {
        f"{name}.base_layer.weight": module
        for name, module in model.named_modules()
        if isinstance(module, Linear)
    }
    for name, tensor in model.state_dict().items():
        if ".lora_" in name:
            continue
        module = adapted.get(name)
        if module is not None:
            delta = module.get_delta_weight(module.active_adapters[0])
            tensor = (tensor.float() + delta.float()).to(tensor.dtype)
        yield name.replace(".base_layer.", "."), tensor


def checkpoint_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors from :func:`merged_weights`, renamed and reshaped for Hugging Face.

    If transformers stores weights in another shape, as for some mixtures of experts, they are
    converted one layer at a time, so that only one layer is copied at once.
    """
    for _, layer in groupby(merged_weights(model), key=lambda item: _layer_prefix(item[0])):
        yield from revert_weight_conversion(model, dict(layer)).items()


def _layer_prefix(name: str) -> str:
    """Return a weight's name up to its layer number, or the whole name if it has no number."""
    match = re.match(r".*?\.\d+\.", name)
    return match[0] if match else name


CHUNK_LOGITS = {"cpu": 2**26, "cuda": 2**28}
"""Maximum number of logits in memory at once, by device type.

Each chunk adds a product of the head's size to the head's gradient, so a GPU, whose memory is much
faster than its launches are cheap, gets larger chunks.
"""


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    temperature: Tensor,
    *,
    chunk: int | None = None,
) -> Tensor:
    """Compute the log-probabilities of token ids under softmax((hidden W^T + b) / temperature).

    The result is in fp32 or better. ``hidden`` is rounded to autocast's dtype under autocast, and
    products are summed in fp32.

    Args:
        hidden: (N, H) last hidden states.
        weight: (V, H) weight of the LM head.
        bias: (V,) bias of the LM head, or None.
        ids: (N,) token that follows each hidden state.
        temperature: (N,) divisor of the logits; above 0.
        chunk: tokens per chunk; by default, as many as need :data:`CHUNK_LOGITS` logits.

    Returns:
        (N,) log-probabilities, with gradients to ``hidden``, ``weight`` and ``bias``.
    """
    logps, _ = _chunked_head(hidden, weight, bias, ids, temperature, chunk, with_entropy=False)
    return logps


def token_logprobs_and_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    temperature: Tensor,
    *,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute :func:`token_logprobs`, and the (N,) entropies of the same softmax in nats.

    Both have gradients to ``hidden``, ``weight`` and ``bias``.
    """
    logps, entropy = _chunked_head(hidden, weight, bias, ids, temperature, chunk, with_entropy=True)
    assert entropy is not None
    return logps, entropy


def _chunked_head(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    temperature: Tensor,
    chunk: int | None,
    *,
    with_entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    hidden = _in_half(hidden)
    most = CHUNK_LOGITS[hidden.device.type]
    most = most // 2 if with_entropy else most  # entropies need a second copy
    size = chunk or max(1, most // weight.shape[0])
    outputs: tuple[Tensor, Tensor | None] = _ChunkedHead.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, ids, temperature, size, with_entropy
    )
    return outputs


class _ChunkedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ids: Tensor,
        temperature: Tensor,
        size: int,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor | None]:
        matrix = _factor(weight, hidden)
        logps = []
        normalisers = []
        entropies = []
        for part in _chunks(len(hidden), size):
            scores = _logits(hidden[part], matrix, bias)  # (n, V)
            scores.div_(temperature[part].unsqueeze(1))
            normalisers.append(scores.logsumexp(dim=1))
            picked = scores.gather(1, ids[part].unsqueeze(1)).squeeze(1)
            logps.append(picked - normalisers[-1])
            if with_entropy:
                scores.sub_(normalisers[-1].unsqueeze(1))
                entropies.append(scores.exp().mul_(scores).sum(dim=1).neg_())
        entropy = torch.cat(entropies) if with_entropy else None
        ctx.save_for_backward(
            hidden, weight, bias, ids, temperature, torch.cat(normalisers), entropy
        )
        ctx.size = size
        return torch.cat(logps), entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, entropy_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, ids, temperature, normaliser, entropy = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        matrix, head = _factor(weight, hidden), weight.to(hidden.dtype)
        hidden_grad = torch.empty_like(hidden) if wants_hidden else None
        weight_grad = torch.zeros_like(weight) if wants_weight else None
        bias_grad = torch.zeros_like(bias) if wants_bias else None
        for part in _chunks(len(hidden), ctx.size):
            # d logp / d score is 1 at the token, minus the softmax everywhere.
            scores = _logits(hidden[part], matrix, bias)
            scores.div_(temperature[part].unsqueeze(1))
            scores.sub_(normaliser[part].unsqueeze(1))
            of_entropy = None
            if entropy_grad is not None:
                # d entropy / d score is -p (log p + entropy).
                factor = (entropy_grad[part] / temperature[part]).unsqueeze(1)
                of_entropy = scores.exp().mul_(scores + entropy[part].unsqueeze(1)).mul_(-factor)
            share = scores.exp_().neg_()
            share.scatter_add_(1, ids[part].unsqueeze(1), torch.ones_like(share[:, :1]))
            share = share.mul_((grad[part] / temperature[part]).unsqueeze(1))
            if of_entropy is not None:
                share += of_entropy
            share = share.to(hidden.dtype)
            if hidden_grad is not None:
                hidden_grad[part] = share @ head
            if weight_grad is not None:
                weight_grad += share.T @ hidden[part]
            if bias_grad is not None:
                bias_grad += share.sum(dim=0)
        return hidden_grad, weight_grad, bias_grad, None, None, None, None


def logits_of(head: torch.nn.Linear, hidden: Tensor) -> Tensor:
    """Return the LM head's (N, V) logits as the learner computes them, in fp32 or better.

    Args:
        head: the LM head.
        hidden: (N, H) last hidden states.
    """
    hidden = _in_half(hidden)
    exact = _exact_dtype(hidden)
    if not hidden.is_cuda and head.weight.dtype == exact:
        with torch.autocast(hidden.device.type, enabled=False):
            logits: Tensor = head(hidden.to(exact))  # which may have its own way to multiply
        return logits
    return _logits(hidden, _factor(head.weight, hidden), head.bias)


def _in_half(hidden: Tensor) -> Tensor:
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        return hidden.to(torch.get_autocast_dtype(kind))
    return hidden


def _factor(weight: Tensor, hidden: Tensor) -> Tensor:
    """Return the head's weight in the dtype that :func:`_logits` multiplies ``hidden`` with."""
    return weight.to(hidden.dtype if hidden.is_cuda else _exact_dtype(hidden))


def _exact_dtype(hidden: Tensor) -> torch.dtype:
    return torch.promote_types(hidden.dtype, torch.float32)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return (N, V) logits in fp32 or better, as a new tensor.

    Products of bf16 numbers are summed and returned in fp32. Rounding the logits to bf16 would more
    than double the k3 divergence between a bf16 sampler and its learner.
    """
    exact = _exact_dtype(hidden)
    with torch.autocast(hidden.device.type, enabled=False):
        if weight.dtype == exact:
            logits = hidden.to(exact) @ weight.T
        else:
            logits = torch.mm(hidden, weight.T, out_dtype=exact)
    if bias is not None:
        logits += bias
    return logits


def _chunks(n: int, size: int) -> Iterator[slice]:
    # One empty chunk for n = 0 keeps every shape and dtype right.
    return (slice(start, start + size) for start in range(0, max(n, 1), size))
