"""A window: the frequency of each label, and the success of the episodes with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class WindowLabel(NamedTuple):
    """A label in a window.

    Attributes:
        turns: number of turns with the label.
        mean: mean success of the episodes of these turns, in [0, 1].
    """

    turns: int
    mean: float


Window = Mapping[str, WindowLabel]
"""Labels that count, with their counts."""
