"""Forward passes that continue sequences from their stored keys and values.

Rows of different lengths share a pass without padding: their new tokens lie end to end in one row,
and the attention function, which the model looks up by name, appends each row's keys and values to
that row's own :class:`~coevo_gym.agents.lm.prefix_cache.SequenceCache`. Import this module lazily:
it requires PyTorch and transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from coevo_gym.agents.lm.causal_lm import head_of, logits_of
from coevo_gym.agents.lm.packing import causal_mask, in_autocast_dtype, use_attention
from coevo_gym.agents.lm.prefix_cache import KeysAndValues, SequenceCache

_ATTENTION = "coevo_cached"
_MAX_FOLDED = 128
"""Maximum number of new tokens per row whose query heads become further queries.

Their mask is repeated. With more tokens, it may take more memory than copies of keys and values.
"""
_MAX_PREPARED = 2**18
"""Maximum size of a mask that a pass keeps repeated, and in the form that is added to the scores.

Otherwise each layer prepares it again, which takes about 2% of the time of passes with few tokens.
"""


@torch.no_grad()
def next_logits(
    model: PreTrainedModel,
    caches: Sequence[SequenceCache],
    unread: Sequence[Sequence[int]],
    n_last: Sequence[int],
) -> Tensor:
    """Process new tokens of several sequences, and add them to the sequences' caches.

    Args:
        model: model in evaluation mode.
        caches: the keys and values of each sequence so far.
        unread: ids of each sequence's new tokens, at least one per sequence.
        n_last: number of each sequence's last tokens whose logits are wanted.

    Returns:
        (sum of ``n_last``, V) logits of the tokens that follow, in fp32 or better.
    """
    counts = [len(ids) for ids in unread]
    positions = [
        np.arange(cache.length, cache.length + n) for cache, n in zip(caches, counts, strict=True)
    ]
    device = model.device
    ids = torch.tensor([*chain.from_iterable(unread)], device=device)
    hidden = _last_hidden_state(
        model,
        ids.unsqueeze(0),
        torch.from_numpy(np.concatenate(positions)).unsqueeze(0).to(device),
        _RowMemory(caches, counts),
    )
    for cache, n in zip(caches, counts, strict=True):
        cache.length += n
    ends = accumulate(counts)
    wanted = [place for end, n in zip(ends, n_last, strict=True) for place in range(end - n, end)]
    return logits_of(head_of(model), hidden[0, torch.tensor(wanted, device=device)])


def next_logits_in_slots(
    model: PreTrainedModel, ids: Tensor, places: Tensor, layers: KeysAndValues
) -> Tensor:
    """Process one token per row in fixed memory; all shapes and addresses stay the same.

    Args:
        model: model in evaluation mode.
        ids: (B,) tokens to process.
        places: (B,) position of each token, which is also its slot in the memory.
        layers: (B, heads, slots, width) keys and values of each layer, which are updated.

    Returns:
        (B, V) logits of the tokens that follow, in fp32 or better.
    """
    memory = _SlotMemory(layers, places)
    hidden = _last_hidden_state(model, ids.unsqueeze(1), places.unsqueeze(1), memory)
    return logits_of(head_of(model), hidden[:, -1])


def _last_hidden_state(
    model: PreTrainedModel, ids: Tensor, positions: Tensor, memory: _RowMemory | _SlotMemory
) -> Tensor:
    with use_attention(model, _ATTENTION):
        output: Any = model.base_model(
            input_ids=ids, position_ids=positions, use_cache=False, sequence_memory=memory
        )
    hidden: Tensor = output.last_hidden_state
    return hidden


class _RowMemory:
    """The memory of a pass whose rows lie end to end, each with its own cache and length."""

    def __init__(self, caches: Sequence[SequenceCache], counts: Sequence[int]) -> None:
        self._caches, self._counts = caches, counts
        self._masks: dict[tuple[int, int, int, int | None], Tensor | None] = {}

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        window: int | None,
    ) -> Tensor:
        """Return the (1, heads, N, D) attention of N new tokens, and store keys and values."""
        parts = [torch.split(part, [*self._counts], dim=2) for part in (query, key, value)]
        outputs = []
        for cache, q, k, v in zip(self._caches, *parts, strict=True):
            keys, values = cache.append(layer, k, v)
            mask = self._mask(q, keys, window)
            outputs.append(_attention(q, keys, values, mask, scaling))
        return torch.cat(outputs, dim=2)

    def _mask(self, query: Tensor, keys: Tensor, window: int | None) -> Tensor | None:
        """Return the mask of one row's attention, which is made once for all similar layers."""
        new, length = query.shape[2], keys.shape[2]
        if new == 1 and (window is None or length <= window):
            return None
        groups = query.shape[1] // keys.shape[1]
        key = new, length, groups, window
        if key not in self._masks:
            mask = causal_mask(new, length, window, query.device)
            few = 1 < new <= _MAX_FOLDED and groups * new * length <= _MAX_PREPARED
            if mask is not None and few:
                added = torch.zeros_like(mask, dtype=query.dtype)
                mask = added.masked_fill_(~mask, float("-inf")).repeat(groups, 1, 1)
            self._masks[key] = mask
        return self._masks[key]


class _SlotMemory:
    """The memory of a pass with one token per row, each written to its own slot."""

    def __init__(self, layers: KeysAndValues, places: Tensor) -> None:
        self._layers, self._places = layers, places
        self._rows = torch.arange(len(places), device=places.device)
        self._masks: dict[int | None, Tensor] = {}

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        window: int | None,
    ) -> Tensor:
        """Return the (B, heads, 1, D) attention of B new tokens, and store keys and values."""
        keys, values = self._layers[layer]
        keys[self._rows, :, self._places] = key[:, :, 0].to(keys.dtype)
        values[self._rows, :, self._places] = value[:, :, 0].to(values.dtype)
        if window not in self._masks:
            slots = torch.arange(keys.shape[2], device=keys.device)
            distance = self._places.unsqueeze(1) - slots
            mask = distance >= 0 if window is None else (distance >= 0) & (distance < window)
            self._masks[window] = mask[:, None, None]
        return _attention(query, keys, values, self._masks[window], scaling)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None
) -> Tensor:
    """Return the (B, heads, Q, D) attention of the last Q of K tokens to keys of (B, heads, K, D).

    For few new tokens per row, query heads that share a key head are treated as several queries.
    Copying keys and values for each query head instead took 8 times as long on a CPU for 12 rows of
    600 tokens with SmolLM2's heads, and one new token per row.
    """
    batch, heads, new, width = query.shape
    groups = heads // key.shape[1]
    if new == 1 or (mask is not None and new <= _MAX_FOLDED):
        shared = query.reshape(batch, key.shape[1], groups * new, width)
        if mask is not None and new > 1:  # a prepared mask is not copied here
            mask = mask.expand(groups, new, -1).reshape(groups * new, -1)
        output = scaled_dot_product_attention(shared, key, value, attn_mask=mask, scale=scaling)
        return output.reshape(batch, heads, new, -1)
    if groups > 1 and mask is not None:  # the fused kernels have no masks with shared heads
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
        groups = 1
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=groups > 1,
    )


def _cached_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    sequence_memory: _RowMemory | _SlotMemory,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Compute attention to stored and new tokens, replacing transformers' attention function.

    Models whose attention has other parts are rejected when they are loaded; see
    :func:`~coevo_gym.agents.lm.causal_lm.check_packing`.

    Args:
        module: the calling attention layer.
        query: (B, heads, N, D).
        key: (B, key heads, N, D).
        value: (B, key heads, N, D).
        attention_mask: ignored, because the lengths of sequences define the mask.
        sequence_memory: keys and values of earlier tokens.
        scaling: factor on the scores; default: 1 / sqrt(D).
        sliding_window: number of tokens that a token sees, including itself; None for all.
        settings: other keyword arguments of models.

    Returns:
        (B, N, heads, D), and None in place of attention weights.
    """
    query, key, value = in_autocast_dtype(query, key, value)
    layer: Any = module.layer_idx
    output = sequence_memory.attend(layer, query, key, value, scaling, sliding_window)
    return output.transpose(1, 2), None


AttentionInterface.register(_ATTENTION, _cached_attention)


_BLOCK = 128  # tokens whose probabilities are added up first


def draw_tokens(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Sample a token per row; return the ids (B,) and their log-probabilities (B,).

    At temperature 0, return the most likely token and log-probability 0. Otherwise, the token is
    the first whose cumulative probability exceeds the uniform number. Blocks of tokens are added up
    first, so that fp64 is needed for their sums and for one block only.

    Args:
        logits: (B, V), in fp32 or better.
        temperatures: (B,) divisors of the logits.
        uniforms: (B,) fp64 numbers in [0, 1).
    """
    greedy = temperatures == 0
    scale = torch.where(greedy, 1.0, temperatures).unsqueeze(1)
    logps = torch.log_softmax(logits / scale, dim=1)  # (B, V)
    padding = -logps.shape[1] % _BLOCK
    blocks = functional.pad(logps.exp(), (0, padding)).view(len(logps), -1, _BLOCK)
    ends = blocks.sum(dim=2).double().cumsum(dim=1)  # (B, V / block)
    points = uniforms.unsqueeze(1) * ends[:, -1:]
    block = torch.searchsorted(ends, points, right=True).clamp(max=ends.shape[1] - 1)
    before = torch.where(block > 0, ends.gather(1, (block - 1).clamp(min=0)), 0.0)
    in_block = blocks.gather(1, block.unsqueeze(2).expand(-1, 1, _BLOCK)).squeeze(1).double()
    place = torch.searchsorted(before + in_block.cumsum(dim=1), points, right=True)
    # Rounding may put a point behind its block's last token that has a probability.
    last = _BLOCK - 1 - (in_block > 0).flip(1).long().argmax(dim=1, keepdim=True)
    tokens = (block * _BLOCK + torch.minimum(place, last)).squeeze(1)
    ids = torch.where(greedy, logits.argmax(dim=1), tokens)
    picked = logps.gather(1, ids.unsqueeze(1)).squeeze(1)
    return ids, torch.where(greedy, 0.0, picked)
