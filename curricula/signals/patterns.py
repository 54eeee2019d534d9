"""Behaviour patterns: descriptions of episodes that are coarse enough to recur.

A benchmark maps each step to zero or more symbols (``Benchmark.symbol``). The finer the symbols,
the more episodes have unique patterns, and the less informative "rare" becomes: with exact tool
sequences, every episode is rare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from types import MappingProxyType

from coevo_gym.core.trajectory import Step, Trajectory

Pattern = tuple[str, ...]
SymbolOf = Callable[[Step], str]
PatternOf = Callable[[Trajectory, SymbolOf], Pattern]

MAX_SYMBOLS = 6
NOTHING: Pattern = ("-",)
"""The pattern of an episode without steps."""


def sequence_pattern(trajectory: Trajectory, symbol: SymbolOf) -> Pattern:
    """Return the sequence of symbols with repeats collapsed, cut to the first six.

    Example:
        >>> from coevo_gym.core.trajectory import EndReason, Step, Trajectory
        >>> steps = tuple(Step("", "", action) for action in ("look", "look", "buy"))
        >>> trajectory = Trajectory(
        ...     task_id="t", steps=steps, score=0.0, success=False, end_reason=EndReason.FAILED
        ... )
        >>> sequence_pattern(trajectory, lambda step: step.action)
        ('look', 'buy')
    """
    runs = [name for name, _ in groupby(_symbols(trajectory, symbol))]
    return tuple(runs[:MAX_SYMBOLS]) or NOTHING


def set_pattern(trajectory: Trajectory, symbol: SymbolOf) -> Pattern:
    """Return the sorted set of symbols."""
    return tuple(sorted(set(_symbols(trajectory, symbol)))) or NOTHING


def _symbols(trajectory: Trajectory, symbol: SymbolOf) -> Iterator[str]:
    """Yield the symbols of all steps."""
    return (name for step in trajectory.steps for name in symbol(step).split())


PATTERNS: Mapping[str, PatternOf] = MappingProxyType(
    {"sequence": sequence_pattern, "set": set_pattern}
)
"""Pattern functions by name, for configs."""
