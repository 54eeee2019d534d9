"""Failure modes: in which way an episode failed, by rules that all benchmarks share.

A benchmark names its modes in a closed list (``Diagnosable.modes``). Its ``diagnose`` returns those
that a failed episode shows, the most telling one first: those of its own rules come before the
common ones of :func:`rule_modes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from coevo_gym.core.trajectory import EndReason, EpisodeRecord, Step

FORMAT, REPEATED, LOOP = "action_format_error", "repeated_failed_action", "navigation_loop"
REPETITIVE, GIVE_UP = "repetitive_exploration", "premature_give_up"
EXHAUSTED = "exhaustive_exploration_failure"
COMMON = (FORMAT, REPEATED, LOOP, REPETITIVE, GIVE_UP, EXHAUSTED)
"""Modes that need no knowledge of a benchmark, in the order in which they are tried.

Source: names of Role-Agent (arXiv 2606.10917), Table 6; the rules are ours.
"""

Ended = Literal["agent", "budget"]
"""Whether the agent ended an episode, or a limit of steps, tokens or time."""

_BUDGET = frozenset(
    {
        EndReason.MAX_STEPS,
        EndReason.MAX_TOKENS,
        EndReason.CONTEXT_OVERFLOW,
        EndReason.TIME_LIMIT,
    }
)
_LEAST = 6
"""Steps from which an episode can go round in circles."""


class Stretch(NamedTuple):
    """One step, as far as rules that all benchmarks share depend on it.

    Attributes:
        action: what the agent sent.
        error_kind: why it had no effect, or "".
        state: the observation that it was taken on, or a place in the benchmark's world.
    """

    action: str
    error_kind: str
    state: str


def rule_modes(
    steps: Sequence[Stretch],
    *,
    format_kinds: Collection[str],
    ended: Ended,
    max_steps: int,
) -> tuple[str, ...]:
    """Return the common failure modes that a failed episode shows, in the order of ``COMMON``.

    Args:
        steps: its steps.
        format_kinds: the kinds of error that tell of an unreadable action.
        ended: who ended it.
        max_steps: most steps that it could have had.

    Returns:
        ``action_format_error``: a third of the steps, or more, were unreadable.
        ``repeated_failed_action``: an action failed, and was sent again at once with the same
        result. ``navigation_loop``: of at least 6 steps, 4 were taken in one state, or the last 6
        in at most 2. ``repetitive_exploration``: of at least 6 steps, fewer than half had an
        action of their own. ``premature_give_up``: the agent ended it in the first third.
        ``exhaustive_exploration_failure``: a limit ended it, and none of the others applies.

    Example:
        >>> step = Stretch("open door", "locked", "hall")
        >>> rule_modes([step, step], format_kinds=(), ended="budget", max_steps=9)
        ('repeated_failed_action',)
    """
    n = len(steps)
    unreadable = sum(step.error_kind in format_kinds for step in steps)
    visits = Counter(step.state for step in steps)
    rules = (
        (FORMAT, n > 0 and 3 * unreadable >= n),
        (REPEATED, any(a.error_kind and a[:2] == b[:2] for a, b in pairwise(steps))),
        (LOOP, n >= _LEAST and (max(visits.values()) >= 4 or _circles(steps))),
        (REPETITIVE, n >= _LEAST and 2 * len({step.action for step in steps}) < n),
        (GIVE_UP, ended == "agent" and 3 * n <= max_steps),
    )
    found = modes_that_apply(rules)
    return found or ((EXHAUSTED,) if ended == "budget" else ())


def listed_modes(
    own: Iterable[str],
    episode: EpisodeRecord,
    steps: Sequence[Stretch],
    *,
    modes: Collection[str],
    format_kinds: Collection[str] = (),
    max_steps: int = 0,
) -> tuple[str, ...]:
    """Return the modes of a failed episode: a benchmark's own, then the common ones in its list.

    Args:
        own: what the benchmark's own rules found, the most telling mode first.
        episode: the episode.
        steps: its steps.
        modes: the benchmark's closed list.
        format_kinds: see :func:`rule_modes`.
        max_steps: see :func:`rule_modes`.

    Returns:
        Each mode once; ``exhaustive_exploration_failure`` where it is in the list, a limit ended
        the episode, and no other mode was found.
    """
    ended: Ended = "budget" if episode.end_reason in _BUDGET else "agent"
    settings = {"format_kinds": format_kinds, "ended": ended, "max_steps": max_steps}
    common = [mode for mode in rule_modes(steps, **settings) if mode in modes]  # type: ignore[arg-type]
    found = dict.fromkeys(mode for mode in (*own, *common) if mode != EXHAUSTED)
    exhausted = EXHAUSTED in modes and ended == "budget"
    return tuple(found) or ((EXHAUSTED,) if exhausted else ())


def stretches(
    steps: Sequence[Step], kind: Callable[[Step], str] = lambda step: step.error_kind
) -> list[Stretch]:
    """Return the steps of an episode as rules see them.

    An action without effect leaves the state as it was, whatever text answers it.

    Args:
        steps: in order.
        kind: returns why a step's action had no effect, or "".
    """
    found: list[Stretch] = []
    for step in steps:
        stays = found and found[-1].error_kind
        state = found[-1].state if stays else step.observation
        found.append(Stretch(step.action, kind(step), state))
    return found


def modes_that_apply(rules: Iterable[tuple[str, bool]]) -> tuple[str, ...]:
    """Return the modes whose rules hold, in order.

    Example:
        >>> modes_that_apply([("a", True), ("b", False), ("c", True)])
        ('a', 'c')
    """
    return tuple(mode for mode, holds in rules if holds)


def _circles(steps: Sequence[Stretch]) -> bool:
    return len({step.state for step in steps[-_LEAST:]}) <= 2
