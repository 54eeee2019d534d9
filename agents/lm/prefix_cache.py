"""Attention keys and values of token sequences, kept so that no token is processed twice.

Import this module lazily: it requires PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coevo_gym.agents.lm.answers import Ids

Tokens = NDArray[np.int64]
KeysAndValues = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of each layer, both of shape (heads, tokens, width)."""
MIN_SHARED = 16
"""Minimum length, in tokens, of a shared prefix that is computed once."""
_ROOM = 64  # minimum number of free slots after growth
_STALE = 2.0  # a sequence not continued for this many times the usual wait is evicted first
_FADING = 0.98  # weight of earlier waits in the usual wait


class SequenceCache:
    """The keys and values of one token sequence in all layers, in memory that grows.

    Attributes:
        length: number of tokens whose keys and values are stored in every layer.
    """

    def __init__(self) -> None:
        self.length = 0
        self._layers: list[tuple[Tensor, Tensor]] = []  # (1, heads, slots, width) each

    @classmethod
    def copy_of(cls, layers: KeysAndValues, n: int) -> SequenceCache:
        """Copy the first ``n`` tokens of another sequence."""
        copied = cls()
        for number, (keys, values) in enumerate(layers):
            copied.append(number, keys[None, :, :n], values[None, :, :n])
        copied.length = n
        return copied

    @property
    def n_bytes(self) -> int:
        """Allocated memory in bytes."""
        return sum(part.nbytes for pair in self._layers for part in pair)

    @property
    def layers(self) -> KeysAndValues:
        """Stored keys and values of each layer, without the free slots."""
        n = self.length
        return [(keys[0, :, :n], values[0, :, :n]) for keys, values in self._layers]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values of new tokens after the stored ones, without changing ``length``.

        Args:
            layer: number of the layer; the first pass must fill the layers in order.
            keys: (1, heads, N, width) of the new tokens.
            values: as ``keys``.

        Returns:
            (1, heads, length + N, width) keys and values of all tokens.
        """
        end = self.length + keys.shape[2]
        if layer == len(self._layers):
            mine = _enlarged(keys, 0, end + _ROOM), _enlarged(values, 0, end + _ROOM)
            self._layers.append(mine)
        my_keys, my_values = self._layers[layer]
        if end > my_keys.shape[2]:
            slots = end + max(_ROOM, end // 4)
            my_keys, my_values = (
                _enlarged(part, self.length, slots) for part in (my_keys, my_values)
            )
            self._layers[layer] = my_keys, my_values
        my_keys[:, :, self.length : end] = keys
        my_values[:, :, self.length : end] = values
        return my_keys[:, :, :end], my_values[:, :, :end]


def _enlarged(part: Tensor, length: int, slots: int) -> Tensor:
    """Return memory with more slots that begins with the first ``length`` tokens."""
    larger = part.new_empty(1, part.shape[1], slots, part.shape[3])
    larger[:, :, :length] = part[:, :, :length]
    return larger


class _Stored(NamedTuple):
    ids: Tokens
    cache: SequenceCache
    stored_at: int  # number of earlier lookups


class PrefixCache:
    """A memory-bounded store of sequences that later prompts may begin with.

    A prompt continues from the stored sequence with the longest common prefix, even if that
    sequence goes on differently. A prompt that contains all of a stored sequence takes its memory
    over without a copy.

    If memory is short, sequences that no prompt has continued for unusually long are evicted.
    Otherwise, the stored sequences stay and the new one is dropped: conversations take turns, so
    the one stored last is needed last. Evicting the least recently used sequence instead would
    evict each one shortly before its next turn.

    Args:
        max_bytes: maximum size; 0 stores nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._stored: dict[Ids, _Stored] = {}  # oldest first
        self._lookups = 0
        self._wait = 0.0  # lookups between storing a sequence and continuing it

    @property
    def n_bytes(self) -> int:
        """Size of the stored keys and values in bytes."""
        return sum(stored.cache.n_bytes for stored in self._stored.values())

    def clear(self) -> None:
        """Drop all sequences. Call this whenever the weights change."""
        self._stored.clear()
        self._lookups, self._wait = 0, 0.0

    def match(self, ids: Tokens) -> tuple[int, Ids | None]:
        """Find the stored sequence that shares the longest prefix with ``ids``.

        Returns:
            Length of the prefix, and the sequence; 0 and None if no token is shared.
        """
        best, key = 0, None
        for name, stored in self._stored.items():
            n = common_prefix_length(ids, stored.ids)
            if n > best:
                best, key = n, name
        return best, key

    def take(self, key: Ids, n: int) -> SequenceCache:
        """Return the first ``n`` tokens of a sequence from :meth:`match`, to be continued.

        A sequence that is taken whole leaves the store.
        """
        stored = self._stored[key]
        if n < len(key):
            return SequenceCache.copy_of(stored.cache.layers, n)
        del self._stored[key]
        self._wait = max(self._lookups - stored.stored_at, self._wait * _FADING)
        return stored.cache

    def count_lookup(self) -> None:
        """Count a prompt that has begun; the count measures how long sequences are stored."""
        self._lookups += 1

    def put(self, ids: Ids, cache: SequenceCache) -> None:
        """Store a sequence if there is room, and drop stored prefixes of it."""
        array, size = np.asarray(ids), cache.n_bytes
        if size > self.max_bytes:
            return
        covered = [
            name
            for name, stored in self._stored.items()
            if common_prefix_length(stored.ids, array) == len(stored.ids)
        ]
        free = self.max_bytes - self.n_bytes
        free += sum(self._stored[name].cache.n_bytes for name in covered)
        evicted = self._stale_before_room(size - free, except_for=covered)
        if evicted is None:
            return
        for name in (*covered, *evicted):
            del self._stored[name]
        self._stored[ids] = _Stored(array, cache, self._lookups)

    def _stale_before_room(self, excess: int, except_for: Sequence[Ids]) -> list[Ids] | None:
        """Return stale sequences whose eviction frees ``excess`` bytes; None if too few are stale.

        Until a sequence has been continued, all sequences from before the last lookup are stale.
        """
        evicted = list[Ids]()
        for name, stored in self._stored.items():
            if excess <= 0 or self._lookups - stored.stored_at <= _STALE * self._wait:
                break  # all later sequences were stored later
            if name not in except_for:
                evicted.append(name)
                excess -= stored.cache.n_bytes
        return evicted if excess <= 0 else None


def common_prefix_length(one: Tokens, other: Tokens) -> int:
    """Return the length of the longest common prefix of two sequences."""
    n = min(len(one), len(other))
    differing = np.flatnonzero(one[:n] != other[:n])
    return int(differing[0]) if len(differing) else n
