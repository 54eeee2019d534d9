"""Prompts as token ids, sampled answers, and the interface of the samplers between them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, fields
from typing import Generic, NamedTuple, Protocol, TypeVar

Ids = tuple[int, ...]
KeyT = TypeVar("KeyT", bound=Hashable)


class Ask(NamedTuple):
    """A prompt for the model to continue, with its sampling settings.

    Attributes:
        prompt: at least one token id.
        temperature: divisor of the logits; 0 samples greedily.
        max_tokens: maximum number of tokens to sample, at least 1.
        seed: seed of the draws.
        episode: id of the episode that asks, for samplers with several caches; "" if unknown.
    """

    prompt: Ids
    temperature: float
    max_tokens: int
    seed: tuple[int, ...] = (0,)
    episode: str = ""


class Sampled(NamedTuple):
    """A sampled answer, as token ids with their log-probabilities.

    Attributes:
        ids: token ids, including the stop token.
        logprobs: log-probability of each token under softmax(logits / temperature), or 0 if greedy.
        lost: the reason if the answer was lost because its sampler failed; then there are no
            tokens. "" otherwise.
    """

    ids: Ids
    logprobs: tuple[float, ...]
    lost: str = ""


NOTHING = Sampled((), ())
"""An answer without a token."""


class Unfinished(NamedTuple, Generic[KeyT]):
    """A prompt whose answer has not ended, with the tokens sampled so far."""

    key: KeyT
    ask: Ask
    begun: Sampled


class AnswerSampler(Protocol[KeyT]):
    """A component that samples answers to prompts, which may be added at any time."""

    def __len__(self) -> int:
        """Return the number of answers that have not ended."""
        ...

    def add(self, key: KeyT, ask: Ask, begun: Sampled = NOTHING) -> None:
        """Add a prompt, whose answer :meth:`step` will return with the given key.

        An answer that has begun goes on after its tokens so far.
        """
        ...

    def step(self) -> list[tuple[KeyT, Sampled]]:
        """Sample a token for each answer in the batch, and return the answers that ended."""
        ...

    def withdraw(self) -> list[Unfinished[KeyT]]:
        """Remove all unfinished answers, and return them in the order of addition."""
        ...


@dataclass
class SamplingCounts:
    """Counts of a sampler's work so far.

    Attributes:
        read: prompt tokens that were not cached and had to be processed.
        reused: prompt tokens taken from a cache or from another row.
        sampled: sampled tokens.
        fed: token positions in all passes. Without graphs, rows have no padding, so these are the
            read tokens, the guessed ones, and all sampled ones that were not guessed, except the
            last of each answer.
        guessed: guesses of the next tokens, which are processed before these are drawn.
        passes: forward passes.
        rows: rows in all passes.
        decoded: sampled tokens that were processed, one per row and pass.
        decoded_with_graph: sampled tokens that a CUDA graph processed.
        restarts: answers that lost their keys and values to changed weights or full memory; their
            tokens so far were read again.
    """

    read: int = 0
    reused: int = 0
    sampled: int = 0
    fed: int = 0
    guessed: int = 0
    passes: int = 0
    rows: int = 0
    decoded: int = 0
    decoded_with_graph: int = 0
    restarts: int = 0

    @property
    def right_guesses(self) -> int:
        """Number of guesses that were right: a row draws one token more for each of them."""
        return self.sampled - self.rows

    def __sub__(self, earlier: SamplingCounts) -> SamplingCounts:
        names = [field.name for field in fields(self)]
        return SamplingCounts(*(getattr(self, name) - getattr(earlier, name) for name in names))


def run_to_end(sampler: AnswerSampler[KeyT]) -> Iterator[tuple[KeyT, Sampled]]:
    """Yield all answers of a sampler, in the order in which they end."""
    while len(sampler):
        yield from sampler.step()
