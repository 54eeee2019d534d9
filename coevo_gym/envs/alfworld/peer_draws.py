"""The games that verl-agent's ALFWorld workers play, drawn from a list by verl-agent's rules.

Every worker shuffles a copy of the list of game files with its own seed and deals one game per
reset; at the end of the list, it shuffles the shuffled list again. So workers of one reset may play
the same game.

The list is in the order of a directory walk, which differs between disks. The order is the caller's
here, and the games that are drawn depend on it, but not how often games repeat or are shared.

Source: the rules of verl-agent at commit 796ed31, with TextWorld's. Its forks have them, too,
unless they changed them; see docs/audit.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

VALIDATION_SEED_OFFSET = 1000
"""Difference between the first validation worker's seed and that of the run, ``env.seed``."""

Game = TypeVar("Game")


def draw_games(
    games: Sequence[Game], *, seed: int, groups: int, resets: int
) -> list[tuple[Game, ...]]:
    """Draw the game that each group of workers plays after each reset.

    Args:
        games: the games in the order of the workers' list, at least one.
        seed: seed of the first group's workers; the next group has the next seed.
        groups: number of groups of workers; a group's workers play the same game.
        resets: number of times that all workers are reset.

    Returns:
        For each reset, the game of each group.

    Example:
        >>> [game for (game,) in draw_games(range(5), seed=0, groups=1, resets=10)]
        [2, 0, 1, 3, 4, 2, 1, 0, 4, 3]
    """
    by_group = [_deal(games, seed + group, resets) for group in range(groups)]
    return list(zip(*by_group, strict=True))


def _deal(games: Sequence[Game], seed: int, resets: int) -> list[Game]:
    """Return the games that the workers with this seed play, one per reset."""
    rng = np.random.RandomState(seed)
    deck: list[Any] = list(games)
    deals: list[Game] = []
    while len(deals) < resets:
        rng.shuffle(deck)
        deals += deck
    return deals[:resets]
