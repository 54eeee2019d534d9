"""Sampling from a transformers model in batches of left-padded prompts.

Import this module lazily: it requires PyTorch and transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, Cache, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from coevo_gym.agents.lm.causal_lm import head_of
from coevo_gym.agents.lm.graphs import Begun, GraphBatch, GraphDecoder, usable_bytes
from coevo_gym.agents.lm.prefix_cache import (
    MIN_SHARED,
    BatchLayer,
    CachedStart,
    Ids,
    KeysAndValues,
    PrefixCache,
    has_truncatable_cache,
    make_batch_cache,
    shared_prefixes,
)

_CPU_CACHE_BYTES = 2**30
_COMPACT = 0.75  # finished rows are dropped when at most this share is live
_ATTENTION = "coevo_shared_heads"


class Ask(NamedTuple):
    """A prompt for the model to continue, with its sampling settings.

    Attributes:
        prompt: at least one token id.
        temperature: divisor of the logits; 0 samples greedily.
        max_tokens: maximum number of tokens to sample, at least 1.
    """

    prompt: Ids
    temperature: float
    max_tokens: int


class Sampled(NamedTuple):
    """A sampled answer, as token ids with their log-probabilities.

    Attributes:
        ids: token ids, including the stop token.
        logprobs: log-probability of each token under softmax(logits / temperature), or 0 if greedy.
    """

    ids: Ids
    logprobs: tuple[float, ...]


class _Row(NamedTuple):
    """A prompt in a batch, with its cached prefix and its random seed."""

    ask: Ask
    start: CachedStart
    seed: tuple[int, int] = (0, 0)

    @property
    def uncached(self) -> Ids:
        """Tokens of the prompt that are not yet in the cache."""
        return self.ask.prompt[self.start.n :]


def sample_padded(
    model: PreTrainedModel,
    asks: Sequence[Ask],
    *,
    stop_ids: Sequence[int],
    seed: int,
    max_prompt_tokens: int,
    prefixes: PrefixCache,
    decoder: GraphDecoder | None = None,
) -> list[Sampled]:
    """Sample an answer to each prompt.

    Prompts continue from cached sequences, and shared prefixes are computed once. Each answer has
    its own generator, seeded with ``seed`` and the index of its prompt, so draws do not depend on
    batching. The model's ``generation_config`` and global generators are not used.

    Args:
        model: model in evaluation mode.
        asks: prompts with their sampling settings.
        stop_ids: ids that end an answer.
        seed: seed of the draws.
        max_prompt_tokens: maximum number of tokens to process at once, including padding; a longer
            prompt gets its own batch.
        prefixes: cache of sequences computed with these weights. New sequences are added unless the
            model's cache cannot be truncated.
        decoder: decoder of this model; see :func:`make_graph_decoder`.

    Returns:
        One answer per prompt, in order.
    """
    limits = max_prompt_tokens, _max_cached_tokens(model)
    stored = prefixes if prefixes.max_bytes and has_truncatable_cache(model) else None
    if stored is not None:
        for beginnings in shared_prefixes([ask.prompt for ask in asks]):
            _cache_sequences(model, beginnings, limits, stored)
    rows = [
        _Row(ask, stored.find(ask.prompt) if stored is not None else CachedStart(), (seed, place))
        for place, ask in enumerate(asks)
    ]
    prefixes.read += sum(len(row.uncached) for row in rows)
    prefixes.reused += sum(row.start.n for row in rows)
    stops = frozenset(stop_ids)
    outputs: dict[int, Sampled] = {}
    for batch in _batches(rows, *limits):
        sampled = _sample_batch(model, [rows[i] for i in batch], stops, stored, decoder)
        outputs.update(zip(batch, sampled, strict=True))
    return [outputs[i] for i in range(len(asks))]


@torch.no_grad()
def _cache_sequences(
    model: PreTrainedModel, sequences: Sequence[Ids], limits: tuple[int, int], stored: PrefixCache
) -> None:
    """Process and cache sequences, skipping sequences with only a few new tokens."""
    rows = [_Row(Ask(ids, 0.0, 0), stored.find(ids)) for ids in sequences]
    rows = [row for row in rows if len(row.uncached) >= MIN_SHARED]
    stored.read += sum(len(row.uncached) for row in rows)
    for places in _batches(rows, *limits):
        batch = _Batch(model, [rows[i] for i in places])
        batch.forward()
        for number, i in enumerate(places):
            batch.cache_row(number, rows[i].ask.prompt, stored)


@torch.no_grad()
def _sample_batch(
    model: PreTrainedModel,
    rows: Sequence[_Row],
    stops: frozenset[int],
    stored: PrefixCache | None,
    decoder: GraphDecoder | None,
) -> list[Sampled]:
    batch: _Batch | GraphBatch = _Batch(model, rows)
    ids: list[list[int]] = [[] for _ in rows]
    logprobs: list[list[float]] = [[] for _ in rows]
    places = list(range(len(rows)))  # indices of the rows that are still in the batch
    live = [True] * len(rows)
    while True:
        for number, (token, logprob) in enumerate(zip(*batch.draw_tokens(), strict=True)):
            if not live[number]:
                continue
            place = places[number]
            ask, answer = rows[place].ask, ids[place]
            answer.append(token)
            logprobs[place].append(logprob)
            if token in stops or len(answer) == ask.max_tokens:
                live[number] = False
                if stored is not None:  # the last token is never processed
                    batch.cache_row(number, ask.prompt + tuple(answer[:-1]), stored)
        if not any(live):
            return [Sampled(tuple(i), tuple(p)) for i, p in zip(ids, logprobs, strict=True)]
        numbers: Sequence[int] = range(len(live))
        if sum(live) <= _COMPACT * len(live):
            numbers = [number for number in numbers if live[number]]
        places, live = [places[i] for i in numbers], [live[i] for i in numbers]
        batch.continue_with_rows(numbers)
        if decoder is not None and isinstance(batch, _Batch):
            batch = decoder.start_batch(batch.decoder_input()) or batch


class _Batch:
    """A batch of rows that are processed and sampled together.

    Shorter rows are left-padded, both in the cached part and in the part of the prompt that is
    still to be processed.
    """

    def __init__(self, model: PreTrainedModel, rows: Sequence[_Row]) -> None:
        asks, starts, rest = zip(*((row.ask, row.start, row.uncached) for row in rows), strict=True)
        begun, longest = max(start.n for start in starts), max(map(len, rest))
        most = max(ask.max_tokens for ask in asks)
        seen = [
            _pad_left([1] * start.n, begun) + _pad_left([1] * len(ids), longest)
            for start, ids in zip(starts, rest, strict=True)
        ]
        uniforms = np.zeros((len(rows), most))
        for row, draws in zip(rows, uniforms, strict=True):
            draws[: row.ask.max_tokens] = np.random.default_rng(row.seed).random(row.ask.max_tokens)
        self._model = model
        self._ids, self._seen, self._temperatures, self._uniforms = (
            torch.tensor(part, device=model.device)
            for part in (
                [_pad_left(ids, longest) for ids in rest],  # (B, tokens to be processed next)
                seen,  # (B, tokens in the cache)
                [ask.temperature for ask in asks],  # (B,)
                uniforms,  # (B, tokens still to be drawn)
            )
        )
        self._positions = (self._seen.cumsum(1) - 1).clamp(min=0)[:, begun:]  # as _ids
        self._cache = make_batch_cache(model, starts, room=longest + most)

    def forward(self) -> Tensor:
        """Process the next tokens; return the (B, V) logits for the tokens that follow."""
        return _forward(self._model, self._ids, self._seen, self._positions, self._cache)

    def draw_tokens(self) -> tuple[list[int], list[float]]:
        """Process the next tokens, and sample one token per row with its log-probability."""
        ids, logprobs = _draw_tokens(self.forward(), self._temperatures, self._uniforms[:, 0])
        self._ids, self._uniforms = ids.unsqueeze(1), self._uniforms[:, 1:]
        return ids.tolist(), logprobs.tolist()

    def continue_with_rows(self, rows: Sequence[int]) -> None:
        """Queue the sampled tokens for processing, and continue with only the given rows."""
        self._seen = torch.cat([self._seen, self._seen.new_ones(len(self._seen), 1)], dim=1)
        self._positions = self._positions[:, -1:] + 1
        if len(rows) < len(self._seen):
            index = torch.tensor(rows, device=self._seen.device)
            for name in ("_ids", "_seen", "_positions", "_temperatures", "_uniforms"):
                setattr(self, name, getattr(self, name)[index])
            self._cache.batch_select_indices(index)

    def decoder_input(self) -> Begun:
        """Convert the batch to a decoder's input. Call :meth:`continue_with_rows` first."""
        seen = self._seen[:, :-1]  # without the queued tokens
        parts = self._ids, self._positions, self._temperatures, self._uniforms, seen
        return Begun(*parts, self._keys_and_values())

    def cache_row(self, row: int, ids: Ids, stored: PrefixCache) -> None:
        """Add a row's processed tokens to a prefix cache, given the tokens' ids."""
        stored.put_row(ids, self._keys_and_values(), row, self._seen[row])

    def _keys_and_values(self) -> KeysAndValues:
        layers = (layer for layer in self._cache.layers if isinstance(layer, BatchLayer))
        return [layer.keys_and_values() for layer in layers]


def _forward(
    model: PreTrainedModel, ids: Tensor, seen: Tensor, positions: Tensor, cache: Cache
) -> Tensor:
    """Process (B, T) tokens, and return the (B, V) logits for the tokens that follow."""
    with _use_shared_key_heads(model):
        output: Any = model.base_model(
            input_ids=ids,
            attention_mask=seen,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        )
    # Use two dimensions: with three, PyTorch copies a frozen head for each row.
    logits: Tensor = head_of(model)(output.last_hidden_state[:, -1])
    return logits


def _draw_tokens(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Sample a token per row; return the ids (B,) and their log-probabilities (B,).

    At temperature 0, return the most likely token and log-probability 0.
    """
    greedy = temperatures == 0
    scale = torch.where(greedy, 1.0, temperatures).unsqueeze(1)
    precise = torch.promote_types(logits.dtype, torch.float32)
    logps = torch.log_softmax(logits.to(precise) / scale, dim=1)  # (B, V)
    shares = logps.double().exp().cumsum(dim=1)
    points = uniforms.unsqueeze(1) * shares[:, -1:]
    tokens = torch.searchsorted(shares, points, right=True).squeeze(1)
    tokens = tokens.clamp(max=shares.shape[1] - 1)
    ids = torch.where(greedy, logits.argmax(dim=1), tokens)
    picked = logps.gather(1, ids.unsqueeze(1)).squeeze(1)
    return ids, torch.where(greedy, 0.0, picked)


def make_graph_decoder(model: PreTrainedModel) -> GraphDecoder | None:
    """Return a decoder for a model in evaluation mode; None if its cache cannot be truncated."""
    return GraphDecoder(model, _forward, _draw_tokens) if has_truncatable_cache(model) else None


@contextmanager
def _use_shared_key_heads(model: PreTrainedModel) -> Iterator[None]:
    """Compute attention without duplicating the key heads that queries share.

    For models that do not use PyTorch's attention, nothing changes.
    """
    before = model.config._attn_implementation
    if before == "sdpa":
        model.config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        model.config._attn_implementation = before


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Compute attention, as a replacement for transformers' own attention function.

    For one new token per row, query heads that share a key head are treated as several queries.
    transformers copies keys and values for each query head instead, which took 8 times as long on a
    CPU for 12 rows of 600 tokens with SmolLM2's heads.

    Args:
        module: the calling attention layer.
        query: (B, heads, Q, D).
        key: (B, key heads, K, D).
        value: (B, key heads, K, D).
        attention_mask: (B, 1, Q, K) bool; None if each query sees all keys up to its own.
        scaling: factor on the scores; default: 1 / sqrt(D).
        position_bias: (B, heads, Q, K) added to the scores by some models.
        settings: other keyword arguments of models.

    Returns:
        (B, Q, heads, D), and None in place of attention weights.
    """
    batch, heads, new, width = query.shape
    if new > 1 or position_bias is not None:
        settings |= {"scaling": scaling, "position_bias": position_bias}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    shared = query.reshape(batch, key.shape[1], heads // key.shape[1], width)
    output = scaled_dot_product_attention(
        shared, key, value, attn_mask=attention_mask, scale=scaling
    )
    return output.reshape(batch, 1, heads, width), None


AttentionInterface.register(_ATTENTION, _attention)
AttentionMaskInterface.register(_ATTENTION, sdpa_mask)


def _pad_left(ids: Sequence[int], length: int) -> list[int]:
    return [0] * (length - len(ids)) + list(ids)


def _batches(rows: Sequence[_Row], max_read: int, max_cache: int) -> Iterator[list[int]]:
    """Yield batches of row indices, grouping rows with similar prompt lengths.

    ``max_read`` limits the tokens that a batch processes at once, and ``max_cache`` those in its
    cache at the end, including padding.
    """
    batch: list[int] = []
    begun = longest = most = 0
    for place in sorted(range(len(rows)), key=lambda i: -len(rows[i].uncached)):
        row, n = rows[place], len(batch) + 1
        begun, most = max(begun, row.start.n), max(most, row.ask.max_tokens)
        longest = max(longest, len(row.uncached))
        if batch and (n * longest > max_read or n * (begun + longest + most) > max_cache):
            yield batch
            batch = []
            begun, longest, most = row.start.n, len(row.uncached), row.ask.max_tokens
        batch.append(place)
    if batch:
        yield batch


def _max_cached_tokens(model: PreTrainedModel) -> int:
    """Return the number of tokens whose keys and values fit in memory."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    token_bytes = 2 * config.num_hidden_layers * heads * width * model.dtype.itemsize
    if model.device.type != "cuda":
        return int(_CPU_CACHE_BYTES // token_bytes)
    return int(usable_bytes(model.device) // token_bytes)
