"""Sampling from a transformers model in batches of prompts that are padded to the left.

Import it lazily: this module needs PyTorch and transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

_CPU_CACHE_BYTES = 2**30
_GPU_SHARE = 0.5  # of the memory that is free
_COMPACT = 0.75  # rows that are over are dropped when at most this share is live


class Ask(NamedTuple):
    """A prompt to go on with.

    Attributes:
        prompt: its token ids, at least one.
        temperature: what logits are divided by; 0 is greedy.
        max_tokens: most tokens to sample, at least 1.
    """

    prompt: tuple[int, ...]
    temperature: float
    max_tokens: int


class Sampled(NamedTuple):
    """What was sampled.

    Attributes:
        ids: token ids, the one that ended it included.
        logprobs: of each, under softmax(logits / temperature); 0 if greedy.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class _Rows:
    """The live rows of a batch."""

    def __init__(self, model: PreTrainedModel, asks: Sequence[Ask]) -> None:
        longest = max(len(ask.prompt) for ask in asks)
        pads = [longest - len(ask.prompt) for ask in asks]
        ids = [[0] * pad + list(ask.prompt) for pad, ask in zip(pads, asks, strict=True)]
        seen = [[0] * pad + [1] * len(ask.prompt) for pad, ask in zip(pads, asks, strict=True)]
        self.index = torch.arange(len(asks), device=model.device)  # (B,) place among the asks
        self.ids = torch.tensor(ids, device=model.device)  # (B, L), then (B, 1)
        self.seen = torch.tensor(seen, device=model.device)  # (B, tokens in the cache)
        self.positions = (self.seen.cumsum(1) - 1).clamp(min=0)  # as ids
        self.limits = torch.tensor([ask.max_tokens for ask in asks], device=model.device)
        self.temperatures = torch.tensor([ask.temperature for ask in asks], device=model.device)
        self.cache = DynamicCache(config=model.config)

    def append(self, tokens: Tensor) -> None:
        """Go on to the next position with these tokens, (B,)."""
        self.ids = tokens.unsqueeze(1)
        self.seen = torch.cat([self.seen, self.seen.new_ones(len(tokens), 1)], dim=1)
        self.positions = self.positions[:, -1:] + 1

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these."""
        for name in ("index", "ids", "seen", "positions", "limits", "temperatures"):
            setattr(self, name, getattr(self, name)[rows])
        self.cache.batch_select_indices(rows)


def sample_padded(
    model: PreTrainedModel,
    asks: Sequence[Ask],
    *,
    stop_ids: Sequence[int],
    seed: int,
    max_prompt_tokens: int,
) -> list[Sampled]:
    """Sample an answer to each prompt.

    Nothing of the model's ``generation_config`` is used, and no global generator.

    Args:
        model: in evaluation mode.
        asks: prompts and how to draw.
        stop_ids: ids that end an answer.
        seed: of the draws.
        max_prompt_tokens: most tokens of a batch's prompts, padding included; a longer prompt has
            a batch of its own.

    Returns:
        One for each prompt, in order.
    """
    generator = torch.Generator(model.device).manual_seed(seed)
    stops = torch.tensor(stop_ids, device=model.device)
    found: dict[int, Sampled] = {}
    for batch in _batches(asks, max_prompt_tokens, _cache_tokens(model)):
        sampled = _sample_batch(model, [asks[i] for i in batch], stops, generator)
        found.update(zip(batch, sampled, strict=True))
    return [found[i] for i in range(len(asks))]


@torch.no_grad()
def _sample_batch(
    model: PreTrainedModel, asks: Sequence[Ask], stops: Tensor, generator: torch.Generator
) -> list[Sampled]:
    rows = _Rows(model, asks)
    live = torch.ones_like(rows.limits, dtype=torch.bool)
    # (steps) of what was drawn: the rows' places, tokens, log-probabilities, and what counts
    drawn: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    while True:
        output: Any = model(
            input_ids=rows.ids,
            attention_mask=rows.seen,
            position_ids=rows.positions,
            past_key_values=rows.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        tokens, logprobs = _draw(output.logits[:, -1], rows.temperatures, generator)
        drawn.append((rows.index, tokens, logprobs, live))
        live = live & ~torch.isin(tokens, stops) & (rows.limits > len(drawn))
        n_live = int(live.sum())
        if not n_live:
            return _collect(len(asks), drawn)
        rows.append(tokens)
        if n_live <= _COMPACT * len(live):
            rows.keep(live.nonzero().squeeze(1))
            live = live[live]


def _draw(
    logits: Tensor, temperatures: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Tokens (B,) and their log-probabilities (B,); at temperature 0 the best, and 0."""
    greedy = temperatures == 0
    scale = torch.where(greedy, 1.0, temperatures).unsqueeze(1)
    logps = torch.log_softmax(logits.float() / scale, dim=1)  # (B, V)
    sampled = torch.multinomial(logps.exp(), 1, generator=generator).squeeze(1)
    tokens = torch.where(greedy, logits.argmax(dim=1), sampled)
    picked = logps.gather(1, tokens.unsqueeze(1)).squeeze(1)
    return tokens, torch.where(greedy, 0.0, picked)


def _collect(n: int, drawn: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]) -> list[Sampled]:
    ids: list[list[int]] = [[] for _ in range(n)]
    logprobs: list[list[float]] = [[] for _ in range(n)]
    for step in drawn:
        for row, token, logprob, counts in zip(*(part.tolist() for part in step), strict=True):
            if counts:
                ids[row].append(token)
                logprobs[row].append(logprob)
    return [Sampled(tuple(i), tuple(p)) for i, p in zip(ids, logprobs, strict=True)]


def _batches(asks: Sequence[Ask], max_prompt: int, max_cache: int) -> Iterator[list[int]]:
    """Places of the asks of each batch: prompts of about one length, within both limits."""
    batch: list[int] = []
    longest = most = 0
    for place in sorted(range(len(asks)), key=lambda i: -len(asks[i].prompt)):
        length, most = len(asks[place].prompt), max(most, asks[place].max_tokens)
        longest, n = max(longest, length), len(batch) + 1
        if batch and (n * longest > max_prompt or n * (longest + most) > max_cache):
            yield batch
            batch, longest, most = [], length, asks[place].max_tokens
        batch.append(place)
    if batch:
        yield batch


def _cache_tokens(model: PreTrainedModel) -> int:
    """Tokens whose keys and values there is memory for."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    token_bytes = 2 * config.num_hidden_layers * heads * width * model.dtype.itemsize
    if model.device.type != "cuda":
        return int(_CPU_CACHE_BYTES // token_bytes)
    free, _ = torch.cuda.mem_get_info(model.device)
    cached = torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
    return int((free + cached) * _GPU_SHARE // token_bytes)
