"""Sampling from a transformers model in a batch that prompts join and answers leave at any time.

Import this module lazily: it requires PyTorch and transformers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate, chain, islice, pairwise
from typing import Generic, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from coevo_gym.agents.lm.answers import NOTHING, Ask, Ids, KeyT, Sampled, SamplingCounts, Unfinished
from coevo_gym.agents.lm.cached_attention import draw_tokens, next_logits
from coevo_gym.agents.lm.graphs import GraphDecoder, usable_bytes
from coevo_gym.agents.lm.prefix_cache import (
    MIN_SHARED,
    KeysAndValues,
    PrefixCache,
    SequenceCache,
    common_prefix_length,
)
from coevo_gym.agents.lm.repetition import Repetition

logger = logging.getLogger(__name__)

_CPU_CACHE_BYTES = 2**32
_MAX_GUESSED = 4  # tokens per row; all of more are seldom right
_CHEAP_TOKENS = 32
"""Number of tokens up to which guesses are made.

On a CPU, the products of 32 tokens take 2.5 times as long as those of one token
(``bench/lm_sampling.py``). In larger passes, a guess is estimated to cost what a right one saves.
"""


class _Row(Generic[KeyT]):
    """An answer in progress."""

    def __init__(self, key: KeyT, ask: Ask, begun: Sampled) -> None:
        self.key, self.ask = key, ask
        self.prompt = np.asarray(ask.prompt)
        self.ids, self.logprobs = list(begun.ids), list(begun.logprobs)
        self.cache: SequenceCache | None = None
        self.n_processed = 0
        self._uniforms = np.random.default_rng(ask.seed).random(ask.max_tokens)
        self._text = Repetition()

    @property
    def last_id(self) -> int:
        return self.ids[-1]

    @property
    def temperature(self) -> float:
        return self.ask.temperature

    @property
    def uniform(self) -> float:
        return self.uniforms(1)[0]

    def uniforms(self, n: int) -> list[float]:
        """Return the numbers in [0, 1) for the next ``n`` draws."""
        return [float(number) for number in self._uniforms[len(self.ids) :][:n]]

    @property
    def n_tokens(self) -> int:
        return len(self.prompt) + len(self.ids)

    @property
    def max_length(self) -> int:
        return len(self.prompt) + self.ask.max_tokens

    def shared_length(self, other: _Row[KeyT]) -> int:
        """Return the number of tokens that could be reused from another row's prompt."""
        return min(common_prefix_length(self.prompt, other.prompt), self.n_tokens - 1)

    def unread(self) -> Sequence[int]:
        """Return the tokens that are not in the cache."""
        n = self.n_processed - len(self.prompt)
        return (*self.ask.prompt[self.n_processed :], *self.ids) if n < 0 else self.ids[n:]

    def guess(self, most: int) -> list[int]:
        """Guess up to ``most`` next tokens of the answer, but not the last that it may have."""
        most = min(most, self.ask.max_tokens - len(self.ids) - 1)
        if most < 1:
            return []
        self._text.extend(islice(chain(self.ask.prompt, self.ids), len(self._text), None))
        return self._text.guess(most)

    def processed(self) -> Ids:
        """Return the tokens that are in the cache."""
        return (*self.ask.prompt, *self.ids)[: self.n_processed]


class _NewTokens(NamedTuple, Generic[KeyT]):
    """The next tokens of an answer, at least one."""

    row: _Row[KeyT]
    ids: list[int]
    logprobs: list[float]


class TokenSampler(Generic[KeyT]):
    """A batch of answers that are sampled together, at least one token of each per pass.

    A prompt may be added at any time. It joins the batch in the next pass if there is memory for
    it, and otherwise waits, in the order of addition. A pass processes all tokens that rows have
    not processed yet: a whole prompt, without its cached beginning, or the last sampled token. A
    prompt that shares a beginning with a row waits until that row has processed it.

    On a CPU, a pass of few tokens costs little more than a pass of one, because it reads all
    weights. So it also processes guesses of the next tokens, from repetitions in the conversation;
    see :class:`coevo_gym.agents.lm.repetition.Repetition`. Each token is drawn as without guesses.
    If it was guessed, the pass has also computed the logits for the next draw.

    Each answer has its own generator, so its draws do not depend on the batch. The logits do, in
    their last bits. The model's ``generation_config`` and global generators are not used.

    If memory runs out, the batch loses its keys and values, half of the rows wait, and all read
    their tokens again.

    Args:
        model: model in evaluation mode.
        stop_ids: ids that end an answer.
        max_pass_tokens: maximum number of tokens per pass; a longer prompt gets its own pass.
        prefixes: cache of sequences computed with these weights; new sequences are added.
        decoder: decoder of this model for rows with one token to process; None for a CPU.
        counts: counts to add to; new counts by default.

    Attributes:
        counts: see :class:`SamplingCounts`.

    Example:
        >>> sampler = TokenSampler(model, stop_ids=[2], max_pass_tokens=4096,    # doctest: +SKIP
        ...     prefixes=PrefixCache(2**30))
        >>> sampler.add("first", Ask((1, 5, 6), 1.0, 20))                   # doctest: +SKIP
        >>> while len(sampler):                                             # doctest: +SKIP
        ...     for key, answer in sampler.step():
        ...         print(key, answer.ids)
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop_ids: Sequence[int],
        max_pass_tokens: int,
        prefixes: PrefixCache,
        decoder: GraphDecoder | None = None,
        counts: SamplingCounts | None = None,
    ) -> None:
        self.counts = counts or SamplingCounts()
        self._model, self._stop_ids = model, frozenset(stop_ids)
        self._max_pass_tokens, self._prefixes, self._decoder = max_pass_tokens, prefixes, decoder
        self._max_cached_tokens = _max_cached_tokens(model, decoder)
        self._waiting: list[_Row[KeyT]] = []
        self._live: list[_Row[KeyT]] = []
        self._eager: set[int] = set()  # ids of rows that the decoder has no memory for

    def __len__(self) -> int:
        """Return the number of answers that have not ended."""
        return len(self._waiting) + len(self._live)

    def add(self, key: KeyT, ask: Ask, begun: Sampled = NOTHING) -> None:
        """Add a prompt, whose answer :meth:`step` will return with the given key.

        An answer that has begun goes on after its tokens so far.
        """
        self._waiting.append(_Row(key, ask, begun))

    def step(self) -> list[tuple[KeyT, Sampled]]:
        """Run one pass, and return the answers that ended, in the order in which they joined.

        Raises:
            torch.OutOfMemoryError: if there is too little memory even for one row.
        """
        try:
            self._start_waiting()
            answers = self._draw_tokens()
        except torch.OutOfMemoryError:
            if len(self._live) <= 1:
                raise
            self._halve()
            return []
        for row, ids, logprobs in answers:
            row.ids += ids
            row.logprobs += logprobs
            self.counts.sampled += len(ids)
        ended = [row for row in self._live if self._has_ended(row)]
        for row in ended:
            self._store(row)
            self._live.remove(row)
            self._eager.discard(id(row))
        return [(row.key, Sampled(tuple(row.ids), tuple(row.logprobs))) for row in ended]

    def withdraw(self) -> list[Unfinished[KeyT]]:
        """Remove all unfinished answers, for example because the weights have changed."""
        self._stop_live()
        rows, self._waiting = self._waiting, []
        return [
            Unfinished(row.key, row.ask, Sampled(tuple(row.ids), tuple(row.logprobs)))
            for row in rows
        ]

    def _stop_live(self) -> None:
        """Move the batch back to the waiting prompts; their keys and values are lost."""
        for row in self._live:
            if self._decoder is not None:
                self._decoder.drop(row)
            row.cache, row.n_processed = None, 0
        self.counts.restarts += len(self._live)
        self._waiting = [*self._live, *self._waiting]
        self._live = []

    def _start_waiting(self) -> None:
        """Move waiting prompts to the batch, as long as there is memory for their answers."""
        reserved = sum(row.max_length for row in self._live)
        started = list[_Row[KeyT]]()
        n_read = 0
        for row in list(self._waiting):
            if self._live and reserved + row.max_length > self._max_cached_tokens:
                return
            n, source = self._longest_prefix(row)
            if any(row.shared_length(other) >= n + MIN_SHARED for other in started):
                continue
            n_unread = row.n_tokens - n
            if n_read and n_read + n_unread > self._max_pass_tokens:
                return
            self._start(row, n, source)
            started.append(row)
            n_read += n_unread
            reserved += row.max_length

    def _longest_prefix(self, row: _Row[KeyT]) -> tuple[int, Ids | _Row[KeyT] | None]:
        """Return the length of a row's longest cached prefix, and the sequence that has it.

        The row's last token is excluded, because its logits are needed.
        """
        tokens = np.asarray((*row.ask.prompt, *row.ids)[:-1])
        best: tuple[int, Ids | _Row[KeyT] | None] = self._prefixes.match(tokens)
        for other in self._live:
            n = min(common_prefix_length(tokens, other.prompt), other.n_processed)
            if n > best[0]:
                best = n, other
        return best

    def _start(self, row: _Row[KeyT], n: int, source: Ids | _Row[KeyT] | None) -> None:
        self._prefixes.count_lookup()
        if isinstance(source, _Row):
            row.cache = SequenceCache.copy_of(self._layers_of(source), n)
        else:
            row.cache = SequenceCache() if source is None else self._prefixes.take(source, n)
        row.n_processed = n
        self._waiting.remove(row)
        self._live.append(row)
        self.counts.read += row.n_tokens - n
        self.counts.reused += n

    def _layers_of(self, row: _Row[KeyT]) -> KeysAndValues:
        if row.cache is not None:
            return row.cache.layers
        assert self._decoder is not None
        return self._decoder.layers_of(row)

    def _draw_tokens(self) -> list[_NewTokens[KeyT]]:
        """Run one pass for all rows; return each row's next tokens."""
        rows = self._live
        if self._decoder is None:
            return self._draw_eagerly(rows, most_guessed=_most_guessed(len(rows)))
        decoded = [row for row in rows if row.ids and id(row) not in self._eager]
        decoded = [row for row in decoded if row.n_processed == row.n_tokens - 1]
        if not decoded:
            return self._draw_eagerly(rows)
        result = self._decoder.draw_tokens(decoded)
        if result is None:
            self._eager |= {id(row) for row in decoded}
            return self._draw_eagerly(rows)
        self.counts.passes += 1
        self.counts.rows += len(decoded)
        self.counts.decoded += len(decoded)
        self.counts.decoded_with_graph += len(decoded)
        self.counts.fed += result.n_padded
        tokens = [
            _NewTokens(row, [token], [logprob])
            for row, token, logprob in zip(decoded, result.ids, result.logprobs, strict=True)
        ]
        done = {id(row) for row in decoded}
        return tokens + self._draw_eagerly([row for row in rows if id(row) not in done])

    def _draw_eagerly(
        self, rows: Sequence[_Row[KeyT]], *, most_guessed: int = 0
    ) -> list[_NewTokens[KeyT]]:
        if not rows:
            return []
        caches = []
        for row in rows:
            if row.cache is None:
                assert self._decoder is not None
                self._decoder.take_out(row)
            assert row.cache is not None
            caches.append(row.cache)
        unread = [row.unread() for row in rows]
        guesses = [row.guess(most_guessed) for row in rows]
        n_draws = [1 + len(guess) for guess in guesses]
        logits = next_logits(
            self._model,
            caches,
            [[*ids, *guess] for ids, guess in zip(unread, guesses, strict=True)],
            n_draws,
        )
        settings = [
            (row.temperature, uniform)
            for row, n in zip(rows, n_draws, strict=True)
            for uniform in row.uniforms(n)
        ]
        temperatures, uniforms = torch.tensor(settings, dtype=torch.double, device=logits.device).T
        ids, logprobs = draw_tokens(logits, temperatures.to(logits.dtype), uniforms)
        self.counts.passes += 1
        self.counts.rows += len(rows)
        self.counts.decoded += sum(
            len(ids) == 1 and bool(row.ids) for row, ids in zip(rows, unread, strict=True)
        )
        self.counts.fed += sum(map(len, unread)) + sum(map(len, guesses))
        self.counts.guessed += sum(map(len, guesses))
        tokens = []
        places = pairwise(accumulate(n_draws, initial=0))
        for row, cache, guess, (start, end) in zip(rows, caches, guesses, places, strict=True):
            valid = self._valid(ids[start:end].tolist(), guess)
            tokens.append(_NewTokens(row, valid, logprobs[start:end].tolist()[: len(valid)]))
            cache.length = row.n_processed = row.n_tokens + len(valid) - 1
        return tokens

    def _valid(self, draws: list[int], guess: Sequence[int]) -> list[int]:
        """Return the tokens up to the first that ends the answer or differs from its guess."""
        for n, (token, guessed) in enumerate(zip(draws, guess, strict=False), start=1):
            if token != guessed or token in self._stop_ids:
                return draws[:n]
        return draws

    def _has_ended(self, row: _Row[KeyT]) -> bool:
        return row.last_id in self._stop_ids or len(row.ids) == row.ask.max_tokens

    def _store(self, row: _Row[KeyT]) -> None:
        """Store the keys and values of an ended answer; its last token has none."""
        if row.cache is None:
            assert self._decoder is not None
            self._decoder.take_out(row)
        assert row.cache is not None
        self._prefixes.put(row.processed(), row.cache)

    def _halve(self) -> None:
        """Free all memory, and continue with at most half of the tokens of the current batch."""
        self._max_cached_tokens = sum(row.max_length for row in self._live) // 2
        logger.warning(
            "sampling ran out of memory rows=%d, so batches have at most %d tokens from now on; "
            "a lower rollout.max_envs or policy.model.prefix_cache_gib needs less memory",
            len(self._live),
            self._max_cached_tokens,
        )
        self._eager |= {id(row) for row in self._live}
        self._stop_live()
        self._prefixes.clear()
        if self._decoder is not None:
            self._decoder.free()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _most_guessed(n_rows: int) -> int:
    """Return the maximum number of tokens to guess per row."""
    return max(0, min(_MAX_GUESSED, _CHEAP_TOKENS // n_rows - 1))


def _max_cached_tokens(model: PreTrainedModel, decoder: GraphDecoder | None) -> int:
    """Return the number of tokens whose keys and values fit in memory, including the decoder's."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    token_bytes = 2 * config.num_hidden_layers * heads * width * model.dtype.itemsize
    if model.device.type != "cuda":
        return int(_CPU_CACHE_BYTES // token_bytes)
    decoder_bytes = 0 if decoder is None else decoder.n_bytes
    return int((usable_bytes(model.device) + decoder_bytes) // token_bytes)
