"""A window: how often each label was seen, and how the episodes with it came out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Seen(NamedTuple):
    """A label in a window.

    Attributes:
        turns: how many had it.
        mean: mean success of their episodes, in [0, 1].
    """

    turns: int
    mean: float


Window = Mapping[str, Seen]
"""Labels that count, with what was seen of them."""
