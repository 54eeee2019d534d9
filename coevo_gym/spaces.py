"""Unicode text as a Gymnasium space.

``gymnasium.spaces.Text`` walks its whole charset in Python to test membership (8 ms for 100 kB),
and a charset of all of Unicode weighs 47 MB. Agents write and read arbitrary Unicode, so the
space here checks type, length and encodability only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium.spaces import Space

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_SAMPLE_CHARS = "abcdefghijklmnopqrstuvwxyz 0123456789[]{}()<>\"'.,:;-_/\\\n\té漢🙂"


def clean_text(text: str, max_length: int) -> str:
    """Make text safe to store, send and compare: applied once, where text enters or leaves.

    Lone surrogates become U+FFFD (they break UTF-8, JSON and SQLite further down the line). Text
    over ``max_length`` characters is cut, and its end says how much is missing.

    Args:
        text: any Python string.
        max_length: longest result, in characters; at least 64.

    Returns:
        A string of at most ``max_length`` characters that encodes as UTF-8.

    Example:
        >>> clean_text("a" + chr(0xD800) + "b", 100)
        'a�b'
        >>> clean_text("x" * 200, 64)
        'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx [168 characters cut]'
    """
    if not text.isascii():
        text = _SURROGATE.sub("�", text)
    if len(text) <= max_length:
        return text
    kept = max_length - 32  # room for the note
    return f"{text[:kept]} [{len(text) - kept} characters cut]"


class UnicodeText(Space[str]):
    """All strings of at most ``max_length`` characters that encode as UTF-8.

    Args:
        max_length: longest member, in characters.
        seed: seed of the space's own generator, used by ``sample`` alone.
    """

    def __init__(self, max_length: int, *, seed: int | np.random.Generator | None = None) -> None:
        if max_length < 64:
            raise ValueError(f"UnicodeText expects max_length >= 64, actual: {max_length}")
        self.max_length = int(max_length)
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no fixed-size array form."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Draw a short string (at most 64 characters) over a mixed alphabet."""
        if mask is not None or probability is not None:
            raise ValueError("UnicodeText.sample takes neither mask nor probability")
        length = int(self.np_random.integers(0, min(64, self.max_length) + 1))
        picks = self.np_random.integers(0, len(_SAMPLE_CHARS), size=length)
        return "".join(_SAMPLE_CHARS[i] for i in picks)

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a string of this space."""
        if not isinstance(x, str) or len(x) > self.max_length:
            return False
        return x.isascii() or _SURROGATE.search(x) is None

    def to_jsonable(self, sample_n: Iterable[str]) -> list[Any]:
        """Strings are JSON as they are."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """Inverse of :meth:`to_jsonable`."""
        return [str(text) for text in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and other.max_length == self.max_length

    def __hash__(self) -> int:
        return hash((UnicodeText, self.max_length))

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"
