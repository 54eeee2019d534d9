"""Evidence: what a rollout did and what came of it, as much as a question has room for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from coevo_gym.core.evolution import Exchange
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.trajectory import EpisodeRecord

EVIDENCE_CHARS = 24_000
"""Most characters of evidence in a question."""
MAX_TEXT = 6_000
"""Most characters of one action, or of one observation, in evidence."""


def evidence_cut(sizes: Sequence[int], cap: int) -> list[int]:
    """Choose the exchanges of a rollout that are shown, so many that they fit.

    The last one goes first, since it shows how the rollout ended; then the first, and then two from
    the end for each from the start, until one does not fit. So there is one gap at most.

    Args:
        sizes: characters of each exchange, in order.
        cap: most characters in all.

    Returns:
        Their places, in order.

    Example:
        >>> evidence_cut([100, 900, 900, 900, 100, 100], cap=1_250)
        [0, 3, 4, 5]
    """
    kept: list[int] = []
    for place in _by_weight(len(sizes)):
        cap -= sizes[place]
        if cap < 0:
            break
        kept.append(place)
    return sorted(kept)


def _by_weight(n: int) -> Iterator[int]:
    """Yield the places of ``n`` exchanges, those that tell most first."""
    start, end = 0, n
    for turn in range(n):
        if turn % 3 == 1:
            yield start
            start += 1
        else:
            end -= 1
            yield end


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
    return sorted(place + 1 for place in islice(_by_weight(n_steps), n_shown))


def opening_of(rollout: EpisodeRecord) -> str:
    """What was shown before the first action; "" if there was none."""
    return clean_text(rollout.steps[0].observation, MAX_TEXT) if rollout.steps else ""


def exchanges_of(rollout: EpisodeRecord) -> tuple[Exchange, ...]:
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
