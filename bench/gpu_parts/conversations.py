"""Conversations with random lengths: prompts, answers and observations of an agent's episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator


class Range(NamedTuple):
    """A log-normal distribution of lengths, in tokens.

    Attributes:
        median: median of the draws.
        sigma: standard deviation of their logarithm; 0 for equal lengths.
        most: maximum; longer draws are cut.
    """

    median: int
    sigma: float = 0.0
    most: int = 2**20

    def draw(self, rng: Generator) -> int:
        """Return a length of at least 1."""
        return int(np.clip(round(self.median * rng.lognormal(0, self.sigma)), 1, self.most))


class Turn(NamedTuple):
    """The lengths, in tokens, of an answer and of the observation that follows it."""

    answer: int
    observation: int


class Conversation(NamedTuple):
    """The lengths of a conversation, in tokens.

    Attributes:
        group: number of the conversation's group; a group has the same first prompt.
        first: length of the first prompt.
        turns: lengths of each turn; no answer follows the last observation.
    """

    group: int
    first: int
    turns: tuple[Turn, ...]

    @property
    def sampled(self) -> int:
        """Number of sampled tokens."""
        return sum(turn.answer for turn in self.turns)

    @property
    def length(self) -> int:
        """Number of tokens up to the end of the last answer."""
        return self.first + sum(map(sum, self.turns)) - self.turns[-1].observation


class Lengths(NamedTuple):
    """The distributions of a set of conversations.

    Attributes:
        first: lengths of first prompts, drawn once per group.
        answer: lengths of answers.
        observation: lengths of observations.
    """

    first: Range
    answer: Range
    observation: Range


def random_conversations(
    n: int, turns: int, lengths: Lengths, *, group_size: int = 1, seed: int = 0
) -> list[Conversation]:
    """Return ``n`` conversations, group by group; the same seed gives the same lengths."""
    rng = np.random.default_rng(seed)
    conversations: list[Conversation] = []
    for i in range(n):
        group = i // group_size
        first = lengths.first.draw(rng) if i % group_size == 0 else conversations[-1].first
        own = [Turn(lengths.answer.draw(rng), lengths.observation.draw(rng)) for _ in range(turns)]
        conversations.append(Conversation(group, first, tuple(own)))
    return conversations


def tokens_once(conversations: Sequence[Conversation]) -> int:
    """Return the number of tokens to feed if each is fed once, and each group's prompt once.

    The last token of a conversation is not fed.
    """
    firsts = {one.group: one.first for one in conversations}
    return sum(firsts.values()) + sum(one.length - 1 - one.first for one in conversations)
