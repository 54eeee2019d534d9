"""Where in an episode a turn lies."""

from __future__ import annotations

from typing import Literal

Position = Literal["only", "early", "middle", "late"]


def position(turn: int, turns: int) -> Position:
    """The third of an episode in which a turn ends.

    Args:
        turn: from 0.
        turns: how many the episode has.

    Example:
        >>> [position(turn, 5) for turn in range(5)]
        ['early', 'middle', 'middle', 'late', 'late']

    Source: the code of SEAL.
    """
    if turns == 1:
        return "only"
    thirds = 3 * (turn + 1)
    if thirds <= turns:
        return "early"
    return "middle" if thirds <= 2 * turns else "late"
