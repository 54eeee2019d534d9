"""PyTorch networks: the scorer of the tiny policy, and the value head of all policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, relu

from coevo_gym.agents.tiny.features import N_DENSE, Encoded, Ints


class CandidateBatch(NamedTuple):
    """A batch of B choices, flattened into a single list of N candidates."""

    words: Tensor
    word_offsets: Tensor  # (N,)
    leading: Tensor  # (N,)
    page: Tensor
    page_offsets: Tensor  # (B,)
    instruction: Tensor
    instruction_offsets: Tensor  # (B,)
    dense: Tensor  # (N, N_DENSE)
    owner: Tensor  # (N,) index of the choice that a candidate belongs to
    sizes: Tensor  # (B,) number of candidates of each choice


def collate(encoded: Sequence[Encoded]) -> CandidateBatch:
    """Combine encoded choices into one batch."""
    sizes = np.array([len(one.n_words) for one in encoded], dtype=np.int64)
    n_words = np.concatenate([one.n_words for one in encoded])
    return CandidateBatch(
        words=_join([one.words for one in encoded]),
        word_offsets=_offsets(n_words),
        leading=_join([one.leading for one in encoded]),
        page=_join([one.page for one in encoded]),
        page_offsets=_offsets(np.array([len(one.page) for one in encoded], dtype=np.int64)),
        instruction=_join([one.instruction for one in encoded]),
        instruction_offsets=_offsets(
            np.array([len(one.instruction) for one in encoded], dtype=np.int64)
        ),
        dense=torch.from_numpy(np.concatenate([one.dense for one in encoded])),
        owner=torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)),
        sizes=torch.from_numpy(sizes),
    )


def _join(arrays: Sequence[Ints]) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays))


def _offsets(lengths: Ints) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64))


class Scorer(nn.Module):
    """A network that scores candidates using hashed words, dense features and the other candidates.

    The sizes are described in ``TinyConfig``. The seed determines initial weights and dropout.
    """

    def __init__(self, *, buckets: int, dim: int, hidden: int, dropout: float, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Parameter(torch.randn(buckets, dim) * 0.3)
            self.first = nn.Linear(4 * dim + N_DENSE, hidden)
            self.second = nn.Linear(3 * hidden, hidden)
            self.score = nn.Linear(hidden, 1, bias=False)  # a softmax ignores a bias
            nn.init.zeros_(self.score.weight)
        self.dropout = dropout
        self.noise = torch.Generator().manual_seed(seed)

    def forward(self, batch: CandidateBatch) -> Tensor:
        """Return the (N,) scores of all candidates."""
        return self.scores(self.hidden(batch))

    def scores(self, hidden: Tensor) -> Tensor:
        """Return the (N,) scores of candidates, given their (N, hidden) hidden states."""
        scores: Tensor = self.score(hidden).squeeze(1)
        return scores

    def hidden(self, batch: CandidateBatch) -> Tensor:
        """Return the (N, hidden) hidden states of all candidates."""
        candidates = embedding_bag(batch.words, self.embedding, batch.word_offsets, mode="mean")
        page = embedding_bag(batch.page, self.embedding, batch.page_offsets, mode="mean")
        wanted = embedding_bag(
            batch.instruction, self.embedding, batch.instruction_offsets, mode="mean"
        )
        # Each of the words and views has the shape (N, dim).
        words = [self._apply_dropout(x) for x in (candidates, self.embedding[batch.leading])]
        views = [self._apply_dropout(x)[batch.owner] for x in (page, wanted)]
        hidden = relu(self.first(torch.cat([*words, *views, batch.dense], dim=1)))  # (N, hidden)
        pooled = torch.cat(self._pool_per_choice(hidden, batch), dim=1)[
            batch.owner
        ]  # (N, 2 hidden)
        return relu(self.second(torch.cat([hidden, pooled], dim=1)))

    def mean_per_choice(self, hidden: Tensor, batch: CandidateBatch) -> Tensor:
        """Return (B, hidden) states, mean-pooled over each decision's candidates."""
        zeros = hidden.new_zeros(len(batch.sizes), hidden.shape[1])
        return zeros.index_add(0, batch.owner, hidden) / batch.sizes.unsqueeze(1)

    def log_softmax(self, scores: Tensor, batch: CandidateBatch) -> Tensor:
        """Return (N,) log-probabilities, normalised over each decision's candidates."""
        n = len(batch.sizes)
        highest = scores.detach().new_full((n,), -torch.inf)
        highest = highest.scatter_reduce(0, batch.owner, scores.detach(), "amax")
        shifted = scores - highest[batch.owner]
        total = scores.new_zeros(n).index_add(0, batch.owner, shifted.exp())
        return shifted - total.log()[batch.owner]

    def entropy(self, logps: Tensor, batch: CandidateBatch) -> Tensor:
        """Return the (B,) entropies of the decisions, given (N,) normalised log-probabilities."""
        zeros = logps.new_zeros(len(batch.sizes))
        return zeros.index_add(0, batch.owner, -(logps.exp() * logps))

    def _pool_per_choice(self, hidden: Tensor, batch: CandidateBatch) -> list[Tensor]:
        """Return (B, hidden) states, max-pooled and mean-pooled over each decision's candidates."""
        zeros = hidden.new_zeros(len(batch.sizes), hidden.shape[1])
        owner = batch.owner.unsqueeze(1).expand_as(hidden)
        # Values after relu are >= 0, so starting from 0 does not change a maximum.
        return [zeros.scatter_reduce(0, owner, hidden, "amax"), self.mean_per_choice(hidden, batch)]

    def _apply_dropout(self, values: Tensor) -> Tensor:
        if not self.training or self.dropout == 0:
            return values
        keep = torch.rand(values.shape, generator=self.noise) >= self.dropout
        return values * keep / (1.0 - self.dropout)


class ValueHead(nn.Module):
    """A linear fp32 layer with one output. Its initial weights are zero."""

    def __init__(self, width: int, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, device=device))
        self.bias = nn.Parameter(torch.zeros((), device=device))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return fp32 value estimates for (..., width) hidden states of any precision."""
        return hidden.float() @ self.weight + self.bias
