"""Evidence: what a rollout did and what came of it, as much as a question has room for."""

from __future__ import annotations

from collections.abc import Sequence

from coevo_gym.core.evolution import Exchange
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.trajectory import Trajectory

EVIDENCE_CHARS = 24_000
"""Most characters of evidence in a question."""
MAX_TEXT = 6_000
"""Most characters of one action, or of one observation, in evidence."""


def evidence_cut(sizes: Sequence[int], cap: int) -> list[int]:
    """Which exchanges of a rollout are shown: the first one, and as many of the last as fit.

    How a rollout began and how it ended tell most about it. The last ones are taken from the end
    until one does not fit, so that there is one gap at most.

    Args:
        sizes: characters of each exchange, in order.
        cap: most characters in all. The first exchange stays even if it is larger.

    Returns:
        Their places, in order.

    Example:
        >>> evidence_cut([100, 900, 900, 900, 100, 100], cap=1_250)
        [0, 3, 4, 5]
    """
    if not sizes:
        return []
    left, oldest = cap - sizes[0], len(sizes)
    while oldest > 1 and sizes[oldest - 1] <= left:
        oldest -= 1
        left -= sizes[oldest]
    return [0, *range(oldest, len(sizes))]


def cut(exchanges: Sequence[Exchange], cap: int = EVIDENCE_CHARS) -> tuple[Exchange, ...]:
    """Those of the exchanges that :func:`evidence_cut` leaves."""
    return tuple(exchanges[place] for place in evidence_cut([*map(size, exchanges)], cap))


def size(exchange: Exchange) -> int:
    """Characters of an exchange."""
    return len(exchange.action) + len(exchange.observation) + len(exchange.error_kind)


def step_numbers(n_shown: int, n_steps: int) -> list[int]:
    """The numbers, from 1, of the steps that are left of a rollout that was cut.

    Args:
        n_shown: how many :func:`evidence_cut` has left.
        n_steps: how many there were.

    Example:
        >>> step_numbers(3, n_steps=7)
        [1, 6, 7]
    """
    return ([1] if n_shown else []) + list(range(n_steps - n_shown + 2, n_steps + 1))


def opening_of(rollout: Trajectory) -> str:
    """What was shown before the first action; "" if there was none."""
    return clean_text(rollout.steps[0].observation, MAX_TEXT) if rollout.steps else ""


def exchanges_of(rollout: Trajectory) -> tuple[Exchange, ...]:
    """All that was done in a rollout, and what each action led to; long texts are cut."""
    led_to = [*(step.observation for step in rollout.steps[1:]), rollout.last_observation]
    return tuple(
        Exchange(
            action=clean_text(step.action, MAX_TEXT),
            observation=clean_text(observation, MAX_TEXT),
            error_kind=step.error_kind,
        )
        for step, observation in zip(rollout.steps, led_to, strict=False)
    )
