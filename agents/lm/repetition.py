"""Guesses of the next tokens of a text that repeats itself, as answers of agents do.

Source: prompt-lookup decoding (Saxena, 2023), a form of speculative decoding.
"""

from __future__ import annotations

from collections.abc import Iterable

N_MATCHED = 3
"""Number of tokens that must have occurred before."""


class Repetition:
    """A token sequence that guesses how it continues from what followed its last tokens before.

    Example:
        >>> text = Repetition()
        >>> text.extend([1, 2, 3, 4, 5, 1, 2, 3])
        >>> text.guess(4)
        [4, 5, 1, 2]
        >>> text.extend([9])
        >>> text.guess(4)
        []
    """

    def __init__(self) -> None:
        self._ids = list[int]()
        self._followers: dict[tuple[int, ...], int] = {}  # place of the token after given tokens

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self._ids)

    def extend(self, ids: Iterable[int]) -> None:
        """Add tokens at the end."""
        for token in ids:
            if len(self._ids) >= N_MATCHED:
                self._followers[tuple(self._ids[-N_MATCHED:])] = len(self._ids)
            self._ids.append(token)

    def guess(self, most: int) -> list[int]:
        """Return up to ``most`` tokens that followed the latest occurrence of the last ones."""
        place = self._followers.get(tuple(self._ids[-N_MATCHED:]))
        return [] if place is None else self._ids[place : place + most]
