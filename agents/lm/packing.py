"""Sequence packing: several sequences share a row, with attention within each sequence only.

Rows are not padded, so no computation is wasted. On a CPU, prefixes that sequences of a row
share, such as a group's prompt, are computed once. Positions restart with each sequence, and the
attention function receives each sequence's start through keyword arguments that transformers'
models pass on. It is active only during :func:`packed_hidden`; other uses of the model, especially
generation with a cache, are not affected. Import this module lazily: it requires PyTorch and
transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import varlen
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from coevo_gym.agents.lm.prefix_cache import MIN_SHARED, common_prefix_length
from coevo_gym.core.errors import ModelError

ATTENTION = "coevo_segments"
"""Name of the attention function in transformers' registry."""
_VARLEN_SETTINGS = frozenset(inspect.signature(varlen.varlen_attn).parameters)
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")


def pack(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Assign sequences to rows, longest first, each to the first row that has room for it.

    A sequence of more than ``limit`` tokens gets its own row.

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


Path = Sequence[tuple[int, int]]
"""Location of a sequence's tokens: pairs of a part's index and the tokens taken from its start."""


class RowPart(NamedTuple):
    """A sequence's tokens in a packed row, without any prefix that the row already contains.

    Attributes:
        sequence: index of the sequence in the row.
        ids: token ids not computed by an earlier part.
        path: location of all tokens of the sequence; the last entry is this part.
    """

    sequence: int
    ids: Sequence[int]
    path: Path


def lay_out_row(sequences: Sequence[Sequence[int]], *, share: bool) -> list[RowPart]:
    """Place sequences end to end in one row.

    With ``share``, prefixes that several sequences share are computed once, if they have at least
    :data:`~coevo_gym.agents.lm.prefix_cache.MIN_SHARED` tokens. Sequences are then sorted so that
    each sequence shares as many tokens as possible with its predecessor.

    Returns:
        One part per sequence, in the order of the row.
    """
    if not share:
        return [RowPart(i, ids, [(i, len(ids))]) for i, ids in enumerate(sequences)]
    parts: list[RowPart] = []
    before = np.empty(0, np.int64)
    for number, index in enumerate(
        sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))
    ):
        ids = np.asarray(sequences[index])
        n = common_prefix_length(before, ids)
        path = _path_prefix(parts[-1].path, n) if n >= MIN_SHARED else []
        own = sequences[index][sum(count for _, count in path) :]
        parts.append(RowPart(index, own, [*path, (number, len(own))]))
        before = ids
    return parts


def _path_prefix(path: Path, n: int) -> Path:
    """Return the parts of a packed row that contain a sequence's first ``n`` tokens."""
    parts = []
    for number, count in path:
        parts.append((number, min(count, n)))
        n -= count
        if n <= 0:
            break
    return parts


def packed_hidden(model: PreTrainedModel, sequences: Sequence[Sequence[int]]) -> Tensor:
    """Pack sequences into one row and compute their last-layer hidden states in one forward pass.

    Each sequence must have at least one token.

    Returns:
        (N, H) hidden states of all tokens, one sequence after the other.
    """
    device = model.device
    # On a GPU, one kernel computes the whole row, without sharing.
    share = device.type == "cpu"
    parts = lay_out_row(sequences, share=share)
    lengths = [len(part.ids) for part in parts]
    ids = torch.tensor([token for part in parts for token in part.ids], device=device)
    ends = [len(sequences[part.sequence]) for part in parts]
    positions = torch.cat(
        [torch.arange(end - n, end, device=device) for n, end in zip(lengths, ends, strict=True)]
    )
    begins = [0, *accumulate(lengths)]
    starts = torch.tensor(begins, dtype=torch.int32, device=device)
    with use_attention(model, ATTENTION):
        output = model.base_model(
            input_ids=ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            cu_seq_lens_q=starts,
            cu_seq_lens_k=starts,
            max_length_q=max(lengths),
            max_length_k=max(lengths),
            paths=[part.path for part in parts] if share else (),
        )
    hidden: Tensor = output.last_hidden_state[0]
    runs = (run for part in sorted(parts, key=lambda part: part.sequence) for run in part.path)
    places = [place for i, n in runs for place in range(begins[i], begins[i] + n)]
    return hidden if places == [*range(len(hidden))] else hidden[torch.tensor(places)]


@contextmanager
def use_attention(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Use a registered attention function for the duration of a ``with`` block.

    Gradient checkpointing recomputes activations, so the backward pass must enter the context
    again; see :func:`enable_gradient_checkpointing`.
    """
    before = model.config._attn_implementation
    model.config._attn_implementation = name
    try:
        yield
    finally:
        model.config._attn_implementation = before


def enable_gradient_checkpointing(model: PreTrainedModel) -> None:
    """Enable gradient checkpointing for packed forward passes in training mode.

    Raises:
        ModelError: if the model does not support gradient checkpointing.
    """

    def contexts() -> tuple[Any, Any]:
        return use_attention(model, ATTENTION), use_attention(model, ATTENTION)

    if not model.supports_gradient_checkpointing:
        raise ModelError(
            f"{type(model).__name__} does not support gradient checkpointing. Set "
            "gradient_checkpointing to false."
        )
    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})
    # Inputs with gradients are only needed for reentrant checkpointing.
    model.disable_input_require_grads()  # type: ignore[no-untyped-call]


def compile_layers(model: PreTrainedModel) -> None:
    """Compile each layer with ``torch.compile`` when it is first used; copies are not compiled."""
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.compile(dynamic=True)


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
    paths: Sequence[Path] = (),
    **settings: Any,
) -> tuple[Tensor, None]:
    """Compute causal attention within each sequence of a row, replacing transformers' attention.

    On a GPU in half precision, this uses PyTorch's variable-length attention, one kernel per row.
    Otherwise it loops over the sequences.

    Args:
        module: the calling attention layer.
        query: (1, heads, N, D).
        key: (1, key heads, N, D).
        value: (1, key heads, N, D).
        attention_mask: ignored, because the starts of sequences define the mask.
        scaling: factor on the scores; default: 1 / sqrt(D).
        dropout: share of attention weights zeroed.
        sliding_window: number of tokens that a token sees, including itself; None for all.
        cu_seq_lens_q: (S + 1,) int32, start of each of the S sequences, and N.
        max_length_q: length of the longest sequence.
        paths: location of each sequence's keys; () if no keys are shared.
        settings: other keyword arguments of models. Those that would change the result are
            rejected.

    Returns:
        (1, N, heads, D), and None in place of attention weights.

    Raises:
        ModelError: if the layer needs another kind of attention, or the model does not pass on
            the starts of sequences.
    """
    unsupported = [name for name in _UNSUPPORTED if settings.get(name) is not None]
    if cu_seq_lens_q is None or unsupported:
        why = ", ".join(unsupported) or "it does not pass on the starts of sequences"
        raise ModelError(
            f"{type(module).__name__} cannot be trained on packed sequences ({why}). Use a "
            "model with plain attention, such as Llama, Qwen2, Qwen3 or Mistral."
        )
    query, key, value = in_autocast_dtype(query, key, value)
    if dropout == 0 and _supports_varlen(query):
        return _varlen_attention(
            query, key, value, cu_seq_lens_q, max_length_q, scaling, sliding_window
        )
    lengths = cu_seq_lens_q.diff().tolist()
    queries, keys, values = (torch.split(x, lengths, dim=2) for x in (query, key, value))
    outputs = []
    for number, path in enumerate(paths or [[(i, n)] for i, n in enumerate(lengths)]):
        if not lengths[number]:  # other parts contain all of the sequence's tokens
            continue
        q, k, v = queries[number], _concatenate_parts(path, keys), _concatenate_parts(path, values)
        mask = causal_mask(q.shape[2], k.shape[2], sliding_window, q.device)
        outputs.append(
            scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                is_causal=mask is None,
                dropout_p=dropout,
                scale=scaling,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def _concatenate_parts(path: Path, parts: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors into attention keys (or values) of shape (1, heads, T, D)."""
    tensors = [parts[number][:, :, :n] for number, n in path]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=2)


def in_autocast_dtype(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Convert to autocast's dtype under autocast: rotary embeddings may return fp32."""
    device = query.device.type
    if not torch.is_autocast_enabled(device):
        return query, key, value
    half = torch.get_autocast_dtype(device)
    return query.to(half), key.to(half), value.to(half)


def causal_mask(own: int, length: int, width: int | None, device: torch.device) -> Tensor | None:
    """Return the attention mask for the last ``own`` tokens, or None for plain causal attention."""
    if own == length and (width is None or length <= width):
        return None
    place = torch.arange(length, device=device)
    distance = place[length - own :].unsqueeze(1) - place
    return (distance >= 0) & (distance < (width or length))


def _supports_varlen(query: Tensor) -> bool:
    width = query.shape[-1]
    return (
        query.is_cuda
        and query.dtype in (torch.float16, torch.bfloat16)
        and width % 8 == 0
        and width <= 256
        and {"scale", "window_size"} <= _VARLEN_SETTINGS
    )


def _varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    longest: int,
    scaling: float | None,
    window: int | None,
) -> tuple[Tensor, None]:
    """Compute attention with PyTorch's variable-length kernel, repeating key heads if necessary."""
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
