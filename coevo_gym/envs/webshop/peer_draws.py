"""The goals that verl-agent's WebShop workers play, drawn from a shop by verl-agent's rules.

Every worker has a shop of its own: it draws prices and price caps, and shuffles the goals, with the
worker's seed. The main process draws positions in these shuffled lists, so a position is another
goal in each group of workers.

Source: the rules of verl-agent at commit 796ed31. Its forks have them, too, unless they changed
them; see docs/audit.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coevo_gym.core.errors import ConfigError
from coevo_gym.envs.webshop.engine.catalogue import Catalogue, original_rng
from coevo_gym.envs.webshop.engine.goals import catalogue_goals, draw_price_caps

VALIDATION_POSITIONS = 500
"""Number of positions for validation, from 0; training has all others."""


class PeerGoal(NamedTuple):
    """A goal in a worker's shop.

    Attributes:
        asin: the product's id.
        options: wanted (name, value) pairs. With ``asin``, they determine the instruction.
        price_cap: highest acceptable price in dollars, 1,000,000 for none.
    """

    asin: str
    options: tuple[tuple[str, str], ...]
    price_cap: float


def shuffle_positions(count: int, seed: int) -> list[int]:
    """Return the catalogue index of the goal at each position of a worker's list.

    Example:
        >>> shuffle_positions(6, 0), shuffle_positions(6, 1)
        ([4, 2, 1, 0, 5, 3], [2, 3, 5, 0, 4, 1])
    """
    order = list(range(count))
    original_rng(seed).shuffle(order)
    return order


def draw_positions(positions: range, *, seed: int, size: int, resets: int) -> list[tuple[int, ...]]:
    """Draw different positions for each reset, one per group.

    Raises:
        ConfigError: if there are fewer positions than groups.
    """
    if size > len(positions):
        raise ConfigError(
            f"WebShop has {len(positions)} positions to draw from, too few for a batch of {size} "
            f"different ones. Choose a batch size of at most {len(positions)}."
        )
    rng = np.random.RandomState(seed)
    draws = (rng.choice(positions, size=size, replace=False) for _ in range(resets))
    return [tuple(map(int, draw)) for draw in draws]


def draw_goals(
    catalogue: Catalogue, *, training: bool, seed: int, groups: int, resets: int
) -> list[tuple[PeerGoal, ...]]:
    """Draw the goal that each group of workers plays after each reset.

    Args:
        catalogue: the shop.
        training: True for training goals, False for validation goals.
        seed: seed of the first group's workers, and of the draw of positions.
        groups: number of groups of workers; a group's workers play the same goal.
        resets: number of times that all workers are reset.

    Returns:
        For each reset, the goal of each group.

    Raises:
        ConfigError: if there are fewer positions than groups.
    """
    count = len(catalogue_goals(catalogue))
    first = min(VALIDATION_POSITIONS, count)
    positions = range(first, count) if training else range(first)
    draws = draw_positions(positions, seed=seed, size=groups, resets=resets)
    by_group = [
        _goals_at(catalogue, seed + group, [row[group] for row in draws]) for group in range(groups)
    ]
    return list(zip(*by_group, strict=True))


def _goals_at(catalogue: Catalogue, seed: int, positions: Sequence[int]) -> list[PeerGoal]:
    """Return the goals at the given positions in the shop of workers with this seed."""
    goals, caps = catalogue_goals(catalogue), draw_price_caps(catalogue, seed)
    order = shuffle_positions(len(goals), seed)
    chosen = (goals[order[position]] for position in positions)
    return [PeerGoal(goal.asin, goal.options, caps[goal.asin]) for goal in chosen]
