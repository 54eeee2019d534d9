"""Sequences laid one after the other in a row, with attention that does not cross between them.

Nothing is padded: a row costs what its tokens cost. Positions restart with each sequence, and the
attention function is told where each begins, through the keyword arguments that transformers'
models hand on to it. It is in use during :func:`packed_hidden` only: everything else that runs the
model, generation with a cache above all, finds the model as it was.
Import it lazily: this module needs PyTorch and transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import varlen
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from coevo_gym.core.errors import ModelError

ATTENTION = "coevo_segments"
"""Name of the attention function in transformers' registry."""
_VARLEN_SETTINGS = frozenset(inspect.signature(varlen.varlen_attn).parameters)
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")


def pack(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Share sequences out to rows, the longest first, each to the first row with room.

    Args:
        lengths: tokens of each sequence.
        limit: most tokens in a row; a longer sequence has a row of its own.

    Returns:
        Indices of the sequences in each row.

    Example:
        >>> pack([3, 9, 5, 1], limit=8)
        [[1], [2, 0], [3]]
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = (row for row, left in enumerate(room) if lengths[index] <= left)
        row = next(fitting, len(rows))
        if row == len(rows):
            rows.append([])
            room.append(limit)
        rows[row].append(index)
        room[row] -= lengths[index]
    return rows


def packed_hidden(model: PreTrainedModel, sequences: Sequence[Sequence[int]]) -> Tensor:
    """Last hidden states of sequences, from one forward pass over one row of them.

    Args:
        model: a causal language model.
        sequences: token ids, at least one in each.

    Returns:
        (N, H) hidden states of all tokens, sequence after sequence.
    """
    lengths = [len(ids) for ids in sequences]
    device = model.device
    ids = torch.tensor([token for ids in sequences for token in ids], device=device)
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    with attention_within_sequences(model):
        output = model.base_model(
            input_ids=ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            cu_seq_lens_q=starts,
            cu_seq_lens_k=starts,
            max_length_q=max(lengths),
            max_length_k=max(lengths),
        )
    hidden: Tensor = output.last_hidden_state[0]
    return hidden


@contextmanager
def attention_within_sequences(model: PreTrainedModel) -> Iterator[None]:
    """The model's attention keeps to the sequences of a packed row, for as long as this lasts.

    What is computed again for gradient checkpointing is computed in the backward pass, where it
    has to be entered again: see :func:`enable_checkpointing`.
    """
    before = model.config._attn_implementation
    model.config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        model.config._attn_implementation = before


def enable_checkpointing(model: PreTrainedModel) -> None:
    """Keep only each layer's input of a packed forward pass in training mode.

    Raises:
        ModelError: if the model has no gradient checkpointing.
    """

    def contexts() -> tuple[Any, Any]:
        return attention_within_sequences(model), attention_within_sequences(model)

    if not model.supports_gradient_checkpointing:
        raise ModelError(
            f"{type(model).__name__} has no gradient checkpointing. Set gradient_checkpointing "
            "to false."
        )
    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})
    # Inputs with gradients are for reentrant checkpointing; here they would be work for nothing.
    model.disable_input_require_grads()  # type: ignore[no-untyped-call]


def sequence_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence of a row; the signature is transformers'.

    On a GPU in half precision it is PyTorch's variable-length attention, one kernel for the row
    (not run by the tests, which need no GPU); else a loop over the sequences.

    Args:
        module: the attention layer that asks.
        query: (1, heads, N, D).
        key: (1, key heads, N, D).
        value: (1, key heads, N, D).
        attention_mask: not used: where sequences begin says it all.
        scaling: what scores are multiplied by; default: 1 / sqrt(D).
        dropout: share of attention weights zeroed.
        sliding_window: tokens that a token sees, itself included; None for all before it.
        cu_seq_lens_q: (S + 1,) int32, where each of the S sequences begins, and N.
        max_length_q: length of the longest sequence.
        settings: other settings of models; those that would change the result are refused.

    Returns:
        (1, N, heads, D) and None, in the place of attention weights.

    Raises:
        ModelError: if the layer's attention is of another kind, or the model does not hand on
            where sequences begin.
    """
    unsupported = [name for name in _UNSUPPORTED if settings.get(name) is not None]
    if cu_seq_lens_q is None or unsupported:
        why = ", ".join(unsupported) or "it does not hand on where sequences begin"
        raise ModelError(
            f"{type(module).__name__} cannot be trained on packed sequences ({why}). Use a "
            "model with plain attention, such as Llama, Qwen2, Qwen3 or Mistral."
        )
    device = query.device.type
    if torch.is_autocast_enabled(device):
        # The rotary embedding may have left queries and keys in fp32.
        half = torch.get_autocast_dtype(device)
        query, key, value = query.to(half), key.to(half), value.to(half)
    if dropout == 0 and _has_kernel(query):
        return _varlen(query, key, value, cu_seq_lens_q, max_length_q, scaling, sliding_window)
    lengths = cu_seq_lens_q.diff().tolist()
    parts = [torch.split(x, lengths, dim=2) for x in (query, key, value)]
    outputs = [
        scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=_window(q.shape[2], sliding_window, q.device),
            is_causal=sliding_window is None or q.shape[2] <= sliding_window,
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        for q, k, v in zip(*parts, strict=True)
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def _window(length: int, width: int | None, device: torch.device) -> Tensor | None:
    """(L, L) which tokens see which; None where that is all before them."""
    if width is None or length <= width:
        return None
    place = torch.arange(length, device=device)
    distance = place.unsqueeze(1) - place
    return (distance >= 0) & (distance < width)


def _has_kernel(query: Tensor) -> bool:
    width = query.shape[-1]
    return (
        query.is_cuda
        and query.dtype in (torch.float16, torch.bfloat16)
        and width % 8 == 0
        and width <= 256
        and {"scale", "window_size"} <= _VARLEN_SETTINGS
    )


def _varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    longest: int,
    scaling: float | None,
    window: int | None,
) -> tuple[Tensor, None]:
    """The same by PyTorch's kernel, which shares key heads in newer versions only."""
    before = -1 if window is None else window - 1
    settings: dict[str, Any] = {"scale": scaling, "window_size": (before, 0)}
    groups = query.shape[1] // key.shape[1]
    if "enable_gqa" in _VARLEN_SETTINGS:
        settings["enable_gqa"] = groups > 1
    elif groups > 1:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))  # (N, heads, D)
    output = varlen.varlen_attn(q, k, v, starts, starts, longest, longest, **settings)
    assert isinstance(output, Tensor)
    return output.unsqueeze(0), None


AttentionInterface.register(ATTENTION, sequence_attention)
