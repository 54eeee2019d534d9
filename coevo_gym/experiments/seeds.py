"""Parsing of seeds, given as a number of seeds or as a list."""

from __future__ import annotations

import re
from collections.abc import Sequence

from coevo_gym.core.errors import ConfigError

MOST = 10_000
"""Maximum number of seeds per table."""
_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def read_seeds(text: str | None, usual: Sequence[int]) -> tuple[int, ...]:
    """Parse a text into seeds.

    Args:
        text: a number of seeds, or a list with commas and ranges; None for the default seeds.
        usual: the default seeds, fixed in advance. If more are requested, they continue from the
            largest.

    Raises:
        ConfigError: if the text is invalid, contains a seed twice, or requests no seed or more than
            :data:`MOST`.

    Example:
        >>> read_seeds("2", [7, 8, 9]), read_seeds("5", [7, 8, 9]), read_seeds("1-3,9", [7])
        ((7, 8), (7, 8, 9, 10, 11), (1, 2, 3, 9))
    """
    if text is None:
        return tuple(usual)
    text = text.strip()
    if re.fullmatch("[0-9]{1,9}", text):
        n, last = int(text), max(usual, default=0)
        parts: list[Sequence[int]] = [usual[:n], range(last + 1, last + 1 + n - len(usual))]
    else:
        parts = [_range(part.strip(), text) for part in text.rstrip(",").split(",")]
    if sum(map(len, parts)) > MOST:
        raise ConfigError(f"--seeds {text}: at most {MOST:,} seeds are allowed.")
    found = [seed for part in parts for seed in part]
    if not found or len(set(found)) != len(found):
        raise ConfigError(f"--seeds {text}: give at least one seed, and each seed only once.")
    return tuple(found)


def _range(part: str, text: str) -> Sequence[int]:
    match = _PART.fullmatch(part)
    if match is None:
        raise ConfigError(
            f"--seeds {text}: {part!r} is not a seed. Give a number of seeds (3) or a list "
            "(401-420, or 1,4,)."
        )
    first = int(match[1])
    return range(first, int(match[2] or first) + 1)
