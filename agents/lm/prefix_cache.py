"""Keys and values of what a model has read, so that no token is read twice.

Import it lazily: this module needs PyTorch and transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

Ids = tuple[int, ...]
KeysAndValues = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of each layer, (heads, tokens, width) each."""
LEAST_SHARED = 16
"""Tokens that prompts must share at least to be read once for all."""
_ROOM = 64  # tokens that a batch has memory for at first; it grows


class Stored(NamedTuple):
    """Keys and values of one sequence.

    Attributes:
        ids: (T,) its token ids.
        layers: keys and values of these, by layer.
        n_bytes: memory that those take.
    """

    ids: NDArray[np.int64]
    layers: KeysAndValues
    n_bytes: int


class Start(NamedTuple):
    """Where to begin to read a prompt.

    Attributes:
        n: tokens at its beginning that need not be read.
        stored: a sequence that begins with them; None if there is none.
    """

    n: int = 0
    stored: Stored | None = None

    def layer(self, number: int) -> tuple[Tensor, Tensor] | None:
        """Return keys and values, in a layer, of what need not be read; None if that is nothing."""
        if self.stored is None:
            return None
        keys, values = self.stored.layers[number]
        return keys[:, : self.n], values[:, : self.n]


class PrefixCache:
    """Keep the keys and values of sequences, those used last, within a bound of memory.

    A prompt goes on from the stored sequence with which it shares the longest beginning, also where
    that sequence went on otherwise.

    Args:
        max_bytes: memory for keys and values; 0 keeps none.

    Attributes:
        read: tokens of prompts read so far.
        reused: tokens of prompts that did not have to be read.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.read = self.reused = 0
        self._stored: dict[Ids, Stored] = {}  # the one used last stands last

    @property
    def n_bytes(self) -> int:
        """Memory that the keys and values take."""
        return sum(stored.n_bytes for stored in self._stored.values())

    def clear(self) -> None:
        """Forget all sequences, as new weights require."""
        self._stored.clear()

    def find(self, prompt: Ids) -> Start:
        """Return where to begin to read a prompt: at its last token at the latest."""
        ids, best, key = np.asarray(prompt[:-1]), Start(), None
        for name, stored in self._stored.items():
            n = n_shared(ids, stored.ids)
            if n > best.n:
                best, key = Start(n, stored), name
        if key is not None:
            self._stored[key] = self._stored.pop(key)
        return best

    def put(self, ids: Ids, layers: KeysAndValues) -> None:
        """Store a sequence in place of those that are its beginnings."""
        array = np.asarray(ids)
        n_bytes = sum(part.nbytes for pair in layers for part in pair)
        if n_bytes > self.max_bytes:
            return
        for name, stored in list(self._stored.items()):
            if len(stored.ids) <= len(ids) and n_shared(stored.ids, array) == len(stored.ids):
                del self._stored[name]
        self._stored[ids] = Stored(array, layers, n_bytes)
        excess = self.n_bytes - self.max_bytes
        for name in list(self._stored):
            if excess <= 0:
                break
            excess -= self._stored.pop(name).n_bytes


def can_be_cut_back(model: PreTrainedModel) -> bool:
    """Return whether the model's cache can be cut back to any beginning of what it has read.

    A sliding window and a recurrent state have forgotten what they would need for that.
    """
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)


def shared_beginnings(prompts: Sequence[Ids]) -> Iterator[list[Ids]]:
    """Return what some prompts have in common, to be read once, in batches.

    The beginning that all prompts share comes first, then longer ones that some of them share, so
    that each batch goes on from the ones before it. The last token of each prompt is left over.
    """
    levels: dict[int, list[Ids]] = {}

    def divide(group: Sequence[Ids], read: int, level: int) -> None:
        """Note what the sorted prompts of a group share beyond the ``read`` tokens they do."""
        if len(group) < 2:
            return
        # Of sorted sequences, the first and the last differ the earliest.
        n = min(n_shared(np.asarray(group[0]), np.asarray(group[-1])), len(group[0]) - 1)
        if n - read >= LEAST_SHARED:
            levels.setdefault(level, []).append(group[0][:n])
            read, level = n, level + 1
        for _, part in groupby(group, key=lambda prompt: prompt[n : n + 1]):
            rest = list(part)
            if len(rest) < len(group):
                divide(rest, read, level)

    divide(sorted(prompts), 0, 0)
    for level in sorted(levels):
        yield levels[level]


class BatchLayer(DynamicLayer):
    """Keys and values of a batch, written in place into memory with room for more.

    Args:
        beginnings: keys and values of what is read already of each row; None where that is nothing.
        begun: tokens read of the longest; others are padded to the left.
        room: tokens that will be added at most.
    """

    def __init__(
        self, beginnings: Sequence[tuple[Tensor, Tensor] | None], *, begun: int, room: int
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._beginnings, self._length, self._room = beginnings, begun, room

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make room for keys and values like these, and fill in what is read already."""
        self.dtype, self.device = key_states.dtype, key_states.device
        ready = self._length + min(self._room, key_states.shape[-2] + _ROOM)
        self.keys = self._filled(key_states, ready, 0)
        self.values = self._filled(value_states, ready, 1)
        self._beginnings = ()
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add the next keys and values, (B, heads, tokens, width) each; return all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        start, self._length = self._length, self._length + key_states.shape[-2]
        if self._length > self.keys.shape[-2]:
            more = max(self._length - start, self.keys.shape[-2] // 2)
            self.keys, self.values = (
                functional.pad(part, (0, 0, 0, more)) for part in (self.keys, self.values)
            )
        self.keys[:, :, start : self._length] = key_states
        self.values[:, :, start : self._length] = value_states
        return self.keys[:, :, : self._length], self.values[:, :, : self._length]

    def get_seq_length(self) -> int:
        """Return how many tokens a row holds, padding included."""
        return self._length

    def of_row(self, row: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return a copy of a row's keys and values at these places."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys[row][:, slots], self.values[row][:, slots]

    def _filled(self, like: Tensor, ready: int, part: int) -> Tensor:
        rows, heads, _, width = like.shape
        made = like.new_zeros(rows, heads, ready, width)  # what pads hold must be finite
        for row, beginning in zip(made, self._beginnings, strict=True):
            if beginning is not None:
                row[:, self._length - beginning[part].shape[-2] : self._length] = beginning[part]
        return made


def batch_cache(model: PreTrainedModel, starts: Sequence[Start], *, room: int) -> Cache:
    """Return a cache for a batch whose rows go on from stored sequences.

    Args:
        model: whose cache it is to be.
        starts: (B) where each row goes on from.
        room: tokens that will be added to a row at most.
    """
    plain = DynamicCache(config=model.config)
    if not can_be_cut_back(model):
        return plain
    begun = max(start.n for start in starts)
    return Cache(
        layers=[
            BatchLayer([start.layer(number) for start in starts], begun=begun, room=room)
            for number in range(len(plain.layers))
        ]
    )


def n_shared(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """Return how many ids two sequences have in common at their beginning."""
    n = min(len(one), len(other))
    differing = np.flatnonzero(one[:n] != other[:n])
    return int(differing[0]) if len(differing) else n
