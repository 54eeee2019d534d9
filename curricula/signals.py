"""Signals (weaknesses in rollouts) and the detector that finds them, as in CoEvolve."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pydantic import Field

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.evolution import Signal
from coevo_gym.core.kinds import Kind, register_kind
from coevo_gym.core.task import FrozenModel
from coevo_gym.core.trajectory import Group, Step, Trajectory
from coevo_gym.curricula.saved import Count, Share, validate

SignalName = Literal["forgetting", "boundary", "rare"]

FORGETTING: SignalName = "forgetting"
BOUNDARY: SignalName = "boundary"
RARE: SignalName = "rare"
ALL_SIGNALS: tuple[SignalName, ...] = (FORGETTING, BOUNDARY, RARE)
"""The weaknesses that CoEvolve detects in rollouts (arXiv 2604.15840, section 3.1)."""

UNGUIDED = "unguided"
"""The kind of contexts without guidance."""
BLIND = "blind"
"""The kind of contexts from training tasks, regardless of their outcomes."""
TARGET = "target"
"""The kind of contexts with a target: tags of a task to find."""
UNPROVEN = "unproven"
"""The kind of unproven tasks, which are used in experiments."""
COVERAGE, LEARNABLE, PROGRESS = "coverage", "learnable", "progress"
"""The kinds of contexts that are not chosen from signals."""

register_kind(Kind(FORGETTING, "forgetting", "#3f6fa8", "#7aa7e0"))
register_kind(Kind(BOUNDARY, "boundary", "#c98a00", "#e0b040"))
register_kind(Kind(RARE, "rare", "#a03070", "#dd7fb2"))
register_kind(Kind(COVERAGE, "coverage", "#2f7d4f", "#6fce97", fires=False))
register_kind(Kind(LEARNABLE, "learnable", "#6b5bb0", "#a99bf0", fires=False))
register_kind(Kind(PROGRESS, "progress", "#a05a2c", "#e0a070", fires=False))
register_kind(Kind(TARGET, "target", "#1f7a7a", "#5fc0c0", fires=False))
register_kind(Kind(UNGUIDED, "unguided", fires=False))
register_kind(Kind(UNPROVEN, "unproven", fires=False))
register_kind(Kind(BLIND, "blind", fires=False))


Pattern = tuple[str, ...]
SymbolOf = Callable[[Step], str]
PatternOf = Callable[[Trajectory, SymbolOf], Pattern]

MAX_SYMBOLS = 6
NOTHING: Pattern = ("-",)
"""The pattern of an episode without steps."""


def sequence_pattern(trajectory: Trajectory, symbol: SymbolOf) -> Pattern:
    """Return the first six symbols that represent an episode's steps, with repeats collapsed.

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


def unordered_pattern(trajectory: Trajectory, symbol: SymbolOf) -> Pattern:
    """Return the sorted set of symbols that represent an episode's steps."""
    return tuple(sorted(set(_symbols(trajectory, symbol)))) or NOTHING


def _symbols(trajectory: Trajectory, symbol: SymbolOf) -> Iterator[str]:
    """Yield the symbols that represent the steps of an episode."""
    return (name for step in trajectory.steps for name in symbol(step).split())


PATTERNS: Mapping[str, PatternOf] = MappingProxyType(
    {"sequence": sequence_pattern, "set": unordered_pattern}
)
"""The pattern functions by name, for use in configs."""


logger = logging.getLogger(__name__)

Outcome = Literal["success", "score"]
Reading = Literal["max", "mean"]
"""Summaries of a visit's outcomes that can be used to detect forgetting."""


class Visit(NamedTuple):
    """The outcomes of a visit to a task, used to detect forgetting.

    Attributes:
        mean: mean outcome.
        max: largest outcome, so that a single success counts.
    """

    mean: float
    max: float


def is_forgetting(history: Sequence[float], s_now: float) -> bool:
    """Return True if the agent now fails a task that it used to solve.

    The result is True iff some ``s`` in ``history`` has ``s >= 0.5``, and ``s_now < 0.5``.

    Args:
        history: best or mean outcome in [0, 1] of each visit in the window, oldest first. It must
            not contain the visit of ``s_now``; otherwise, every mixed group would look like
            forgetting.
        s_now: outcome of the current episode in [0, 1].

    Raises:
        ValueError: if an outcome is not a number in [0, 1].
    """
    _check_outcomes(*history, s_now)
    return s_now < 0.5 and any(s >= 0.5 for s in history)


def is_boundary(scores: Sequence[float]) -> bool:
    """Return True if a task is at the boundary of the agent's ability.

    The result is True iff one rollout in the group has ``R > 0.5`` and another has ``R < 0.5``;
    exactly 0.5 is neither. With outcomes of 0 and 1, these groups provide a gradient for GRPO.

    Args:
        scores: (K,) outcomes of a complete group, in [0, 1].

    Raises:
        ValueError: if an outcome is not a number in [0, 1].
    """
    _check_outcomes(*scores)
    return any(s > 0.5 for s in scores) and any(s < 0.5 for s in scores)


def is_rare(
    counts: Mapping[Pattern, int],
    pattern: Pattern,
    *,
    theta: float = 5.0,
    n_min: int = 64,
    min_support: int = 1,
    total: int | None = None,
) -> bool:
    """Return True if a behaviour is rare.

    With c = ``counts[pattern]`` and N = the sum of all counts (occurrences, not distinct patterns),
    the result is True iff ``N >= n_min``, ``c >= max(1, min_support)`` and ``c / N < theta / 100``.

    Args:
        counts: occurrences of each pattern, including the current episode.
        pattern: the pattern of the current episode.
        theta: threshold in percent.
        n_min: minimum total number of occurrences before a pattern is called rare.
        min_support: minimum number of occurrences of a rare pattern. 1 follows the paper's formula,
            2 its prose ("recur across multiple trajectories").
        total: N, if already known.
    """
    n = sum(counts.values()) if total is None else total
    c = counts.get(pattern, 0)
    return n >= n_min and c >= max(1, min_support) and c * 100 < theta * n


def _check_outcomes(*outcomes: float) -> None:
    for outcome in outcomes:
        if not 0.0 <= outcome <= 1.0:  # also rejects NaN
            raise ValueError(f"An outcome must be a number in [0, 1], got {outcome}.")


class DetectorConfig(FrozenModel):
    """Settings for the signal detector. The detector runs with every ``growth`` setting."""

    signals: tuple[SignalName, ...] = Field(default=ALL_SIGNALS, min_length=1)
    """Signals to detect."""
    window: int = Field(default=5, gt=0)
    """Number of past visits to a task that are used to detect forgetting."""
    visit: Reading = "max"
    """Outcome of a past visit when detecting forgetting. max: the largest outcome in that visit's
    group, so that a single success counts, as in the paper's text. mean: the mean outcome."""
    theta: float = Field(default=5.0, gt=0, le=100)
    """Share of all episodes, in percent, below which a behaviour is rare."""
    n_min: int = Field(default=64, gt=0)
    """Minimum number of episodes before any behaviour is called rare."""
    min_support: int = Field(default=1, gt=0)
    """Minimum number of episodes that must show a behaviour before it is called rare."""
    outcome: Outcome = "success"
    """Outcome that signals use: binary success, or the benchmark's own score."""
    pattern: Literal["sequence", "set"] = "sequence"
    """Description of an episode's behaviour. sequence: steps in order. set: the distinct steps."""


class SignalDetector:
    """A detector that finds signals in groups and keeps a history for later groups.

    A batch is processed as a whole: its patterns are counted first, then all rules are tested
    against the windows from before the batch, and finally each group adds one entry to its task's
    window. The order of groups within a batch therefore does not matter.
    """

    def __init__(self, config: DetectorConfig | None = None) -> None:
        self.config = config or DetectorConfig()
        self._windows: dict[str, deque[Visit]] = {}
        self._forgotten: dict[Reading, int] = {"max": 0, "mean": 0}
        self._counts: dict[Pattern, int] = {}
        self._total = 0
        self._tested = 0
        self._flagged = 0
        self._warned = False

    @property
    def forgetting_counts(self) -> Mapping[Reading, int]:
        """Number of times that forgetting was detected, for each way of combining past outcomes."""
        return self._forgotten

    @property
    def pattern_counts(self) -> Mapping[Pattern, int]:
        """Number of occurrences of each pattern so far."""
        return self._counts

    def detect(self, groups: Sequence[Group]) -> list[Signal]:
        """Return the signals detected in a batch of groups.

        Boundary requires a complete, comparable group, but forgetting and rare also use episodes
        from broken or stale groups. An episode may have several signals.

        Returns:
            Signals ordered by group, then episode, then kind (forgetting, boundary, rare).
        """
        patterns = [[self._pattern(group, t) for t in group.trajectories] for group in groups]
        for pattern in (p for of_group in patterns for p in of_group):
            self._counts[pattern] = self._counts.get(pattern, 0) + 1
            self._total += 1
        signals = [
            signal
            for group, of_group in zip(groups, patterns, strict=True)
            for signal in self._detect_in_group(group, of_group)
        ]
        for group in groups:
            self._add_visit(group)
        if self._total >= self.config.n_min:
            self._tested += sum(map(len, patterns))
            self._flagged += sum(signal.kind == RARE for signal in signals)
        self._warn_if_mostly_rare()
        return signals

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON: the windows of recent visits and all counters."""
        return {
            "windows": {
                task_id: [list(visit) for visit in window]
                for task_id, window in self._windows.items()
            },
            "forgotten": dict(self._forgotten),
            "counts": [[list(pattern), count] for pattern, count in self._counts.items()],
            "tested": self._tested,
            "flagged": self._flagged,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        windows = validate(dict[str, list[tuple[Share, Share]]], state["windows"])
        self._windows = {
            task_id: deque((Visit(*visit) for visit in window), maxlen=self.config.window)
            for task_id, window in windows.items()
        }
        self._forgotten = validate(dict[Reading, Count], state["forgotten"])
        self._counts = dict(validate(list[tuple[tuple[str, ...], Count]], state["counts"]))
        self._total = sum(self._counts.values())
        self._tested = validate(Count, state["tested"])
        self._flagged = validate(Count, state["flagged"])

    def _scores(self, group: Group) -> list[float]:
        by_success = self.config.outcome == "success"
        return [float(t.success if by_success else t.score) for t in group.trajectories]

    def _pattern(self, group: Group, trajectory: Trajectory) -> Pattern:
        pattern_of = PATTERNS[self.config.pattern]
        return pattern_of(trajectory, get_benchmark(group.task.benchmark).symbol)

    def _detect_in_group(self, group: Group, patterns: Sequence[Pattern]) -> Iterator[Signal]:
        scores = self._scores(group)
        visits = tuple(self._windows.get(group.task.id, ()))
        read_as: dict[Reading, tuple[float, ...]] = {
            "max": tuple(visit.max for visit in visits),
            "mean": tuple(visit.mean for visit in visits),
        }
        mixed = group.is_comparable and is_boundary(scores)
        for index, (score, pattern) in enumerate(zip(scores, patterns, strict=True)):
            fired: dict[SignalName, dict[str, Any]] = {}
            for reading, history in read_as.items():
                if is_forgetting(history, score):
                    self._forgotten[reading] += 1
                    if reading == self.config.visit:
                        fired[FORGETTING] = {"history": history, "now": score}
            if mixed:
                fired[BOUNDARY] = {"outcomes": scores}
            if is_rare(
                self._counts,
                pattern,
                theta=self.config.theta,
                n_min=self.config.n_min,
                min_support=self.config.min_support,
                total=self._total,
            ):
                count = self._counts[pattern]
                evidence = {"pattern": pattern, "count": count, "total": self._total}
                fired[RARE] = evidence
            for kind, numbers in fired.items():
                if kind in self.config.signals:
                    yield Signal(
                        kind=kind,
                        task_id=group.task.id,
                        group_id=group.id,
                        index=index,
                        evidence=numbers,
                    )

    def _add_visit(self, group: Group) -> None:
        """Add the group's outcomes to the window of recent visits to its task."""
        scores = self._scores(group)
        if not scores:
            return
        visit = Visit(math.fsum(scores) / len(scores), max(scores))
        self._windows.setdefault(group.task.id, deque(maxlen=self.config.window)).append(visit)

    def _warn_if_mostly_rare(self) -> None:
        """Log a single warning if more than half of the judged episodes are classified as rare.

        At least ``n_min`` episodes must be judged first, because a batch may be a single group
        whose rollouts all show the same rare behaviour.
        """
        if self._warned or self._tested < self.config.n_min or 2 * self._flagged <= self._tested:
            return
        self._warned = True
        logger.warning(
            "rare_share=%.2f distinct_patterns=%d: most episodes count as rare, so the "
            "signal is not informative. Describe behaviour more coarsely "
            "(curriculum.detector.pattern='set', or coarser step symbols in the "
            "benchmark), lower curriculum.detector.theta (now %g), or raise "
            "curriculum.detector.min_support (now %d). In Python, use "
            "make_curriculum(..., detector={'pattern': 'set'}).",
            self._flagged / self._tested,
            len(self._counts),
            self.config.theta,
            self.config.min_support,
        )
