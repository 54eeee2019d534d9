"""Token ids of texts, kept within a bound of memory."""

from __future__ import annotations

import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock

_ENTRY_BYTES = 200  # of an entry in the dict, about


class TokenCache:
    """Tokenise texts and keep the ids of the most recently used ones.

    Threads may share a cache.

    Args:
        tokenise: Return the ids of a text, each below 2**31.
        max_bytes: Memory for texts and their ids. A text that takes more than this is not kept.

    Attributes:
        n_bytes: memory in use.

    Example:
        >>> ids_of = TokenCache(lambda text: [ord(letter) for letter in text], max_bytes=10_000)
        >>> list(ids_of("ab"))
        [97, 98]
    """

    def __init__(self, tokenise: Callable[[str], Sequence[int]], max_bytes: int) -> None:
        self._tokenise, self._max_bytes = tokenise, max_bytes
        self._known: OrderedDict[str, array[int]] = OrderedDict()
        self._lock = Lock()
        self.n_bytes = 0

    def __call__(self, text: str) -> array[int]:
        """Return the ids of a text."""
        with self._lock:
            known = self._known.get(text)
            if known is not None:
                self._known.move_to_end(text)
                return known
        ids = array("i", self._tokenise(text))
        with self._lock:
            if text not in self._known and _size(text, ids) <= self._max_bytes:
                self._known[text] = ids
                self.n_bytes += _size(text, ids)
            while self.n_bytes > self._max_bytes:
                self.n_bytes -= _size(*self._known.popitem(last=False))
        return ids


def _size(text: str, ids: array[int]) -> int:
    return sys.getsizeof(text) + sys.getsizeof(ids) + _ENTRY_BYTES
