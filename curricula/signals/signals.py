"""Signals: the three weaknesses that CoEvolve reads from rollouts.

Three pure rules, and a detector that keeps what they look back on. The rules are those of
arXiv 2604.15840, section 3.1; where it is silent, the choice is named in the docstring.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.evolution import Signal
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.curricula.saved import Count, Share, read
from coevo_gym.curricula.signals.kinds import ALL_SIGNALS, BOUNDARY, FORGETTING, RARE, SignalName
from coevo_gym.curricula.signals.patterns import Pattern, PatternOf, sequence_pattern

logger = logging.getLogger(__name__)

Outcome = Literal["success", "score"]
Reading = Literal["max", "mean"]
"""What forgetting reads of a visit."""


class Visit(NamedTuple):
    """The outcomes of a group, as forgetting looks back on them.

    Attributes:
        mean: their mean.
        max: the largest of them, so that any one of them counts.
    """

    mean: float
    max: float


def forgetting(history: Sequence[float], s_now: float) -> bool:
    """Whether something once solved has failed now.

    Fires iff some ``s`` in ``history`` has ``s >= 0.5``, and ``s_now < 0.5``.

    Args:
        history: outcomes in [0, 1] of the task's recent visits, oldest first, already cut to the
            window: of each visit its best one, or their mean. The visit that ``s_now`` belongs to
            must not be in it: pushed one by one, the rollouts of every mixed group would look like
            forgetting.
        s_now: outcome in [0, 1] of the episode that is judged.

    Raises:
        ValueError: if an outcome is not a number in [0, 1].
    """
    _check(*history, s_now)
    return s_now < 0.5 and any(s >= 0.5 for s in history)


def boundary(scores: Sequence[float]) -> bool:
    """Whether a task lies at the edge of what the agent can do.

    Fires iff one rollout of the group has ``R > 0.5`` and another ``R < 0.5``; exactly 0.5 is
    neither. With 0/1 outcomes these are the groups that give GRPO a gradient.

    Args:
        scores: (K,) outcomes in [0, 1] of one whole group.

    Raises:
        ValueError: if an outcome is not a number in [0, 1].
    """
    _check(*scores)
    return any(s > 0.5 for s in scores) and any(s < 0.5 for s in scores)


def rare(
    counts: Mapping[Pattern, int],
    pattern: Pattern,
    *,
    theta: float = 5.0,
    n_min: int = 64,
    min_support: int = 1,
    total: int | None = None,
) -> bool:
    """Whether a behaviour is seldom seen.

    With c = ``counts[pattern]`` and N = the sum of all counts (occurrences, not distinct
    patterns), fires iff ``N >= n_min``, ``c >= max(1, min_support)`` and ``c / N < theta / 100``.

    Args:
        counts: occurrences of each pattern, the judged episode among them.
        pattern: the pattern of the judged episode.
        theta: threshold in per cent.
        n_min: fewest occurrences in all before anything is called rare.
        min_support: fewest occurrences of a rare pattern. 1 is the paper's formula, 2 its prose
            ("recur across multiple trajectories").
        total: N, if it is known already.
    """
    n = sum(counts.values()) if total is None else total
    c = counts.get(pattern, 0)
    return n >= n_min and c >= max(1, min_support) and c * 100 < theta * n


def _check(*outcomes: float) -> None:
    for outcome in outcomes:
        if not 0.0 <= outcome <= 1.0:  # also refuses NaN
            raise ValueError(f"An outcome is a number in [0, 1], actual: {outcome}")


class SignalDetector:
    """Finds the signals in groups, and remembers what the next groups are compared with.

    A batch is judged as a whole: its patterns are counted first, every rule is then tested
    against the windows as they were before the batch, and each group adds one entry to its task's
    window last. So the order of groups within a batch changes nothing.

    Args:
        signals: the rules to apply.
        window: how many visits of a task forgetting looks back on.
        visit: what forgetting reads of a visit: the ``max`` of its group's outcomes, so that each
            single one counts, or their ``mean``.
        theta: see :func:`rare`.
        n_min: see :func:`rare`.
        min_support: see :func:`rare`.
        outcome: ``"success"`` reads the binary outcome, ``"score"`` the benchmark's own score.
        pattern_of: makes an episode's pattern from its steps' symbols.
    """

    def __init__(
        self,
        *,
        signals: Sequence[SignalName] = ALL_SIGNALS,
        window: int = 5,
        visit: Reading = "max",
        theta: float = 5.0,
        n_min: int = 64,
        min_support: int = 1,
        outcome: Outcome = "success",
        pattern_of: PatternOf = sequence_pattern,
    ) -> None:
        self.signals = frozenset(signals)
        self.window = window
        self.visit = visit
        self.theta, self.n_min, self.min_support = theta, n_min, min_support
        self.outcome = outcome
        self.pattern_of = pattern_of
        self._windows: dict[str, deque[Visit]] = {}
        self._forgotten: dict[Reading, int] = {"max": 0, "mean": 0}
        self._counts: dict[Pattern, int] = {}
        self._total = 0
        self._tested = 0
        self._flagged = 0
        self._warned = False

    @property
    def forgotten(self) -> Mapping[Reading, int]:
        """Episodes that forgetting has fired for, or would have, by what is read of a visit."""
        return self._forgotten

    @property
    def patterns(self) -> Mapping[Pattern, int]:
        """Occurrences of each pattern so far."""
        return self._counts

    def detect(self, groups: Sequence[Group]) -> list[Signal]:
        """Judge a batch of groups.

        Only a whole group can be a boundary; the episodes of a broken or stale one still count for
        forgetting and rare. One episode may carry several signals.

        Returns:
            Signals in the order of groups, then episodes, then forgetting, boundary, rare.
        """
        patterns = [[self._pattern(group, t) for t in group.trajectories] for group in groups]
        for pattern in (p for of_group in patterns for p in of_group):
            self._counts[pattern] = self._counts.get(pattern, 0) + 1
            self._total += 1
        found = [
            signal
            for group, of_group in zip(groups, patterns, strict=True)
            for signal in self._judge(group, of_group)
        ]
        for group in groups:
            self._push(group)
        self._warn_if_meaningless(found, sum(map(len, patterns)))
        return found

    def state_dict(self) -> dict[str, Any]:
        """Windows and counts as JSON."""
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
        """Restore :meth:`state_dict`, also one whose visits are single numbers."""
        windows = read(dict[str, list[tuple[Share, Share] | Share]], state["windows"])
        self._windows = {
            task_id: deque(map(_visit, window), maxlen=self.window)
            for task_id, window in windows.items()
        }
        self._forgotten = read(dict[Reading, Count], state.get("forgotten", {"max": 0, "mean": 0}))
        self._counts = dict(read(list[tuple[tuple[str, ...], Count]], state["counts"]))
        self._total = sum(self._counts.values())
        self._tested = read(Count, state["tested"])
        self._flagged = read(Count, state["flagged"])

    def _outcome(self, trajectory: Trajectory) -> float:
        return float(trajectory.success if self.outcome == "success" else trajectory.score)

    def _pattern(self, group: Group, trajectory: Trajectory) -> Pattern:
        return self.pattern_of(trajectory, get_benchmark(group.task.benchmark).symbol)

    def _judge(self, group: Group, patterns: Sequence[Pattern]) -> Iterator[Signal]:
        scores = [self._outcome(trajectory) for trajectory in group.trajectories]
        visits = tuple(self._windows.get(group.task.id, ()))
        read_as: dict[Reading, tuple[float, ...]] = {
            "max": tuple(visit.max for visit in visits),
            "mean": tuple(visit.mean for visit in visits),
        }
        mixed = group.comparable and boundary(scores)
        for index, (score, pattern) in enumerate(zip(scores, patterns, strict=True)):
            fired: dict[SignalName, dict[str, Any]] = {}
            for reading, history in read_as.items():
                if forgetting(history, score):
                    self._forgotten[reading] += 1
                    if reading == self.visit:
                        fired[FORGETTING] = {"history": history, "now": score}
            if mixed:
                fired[BOUNDARY] = {"outcomes": scores}
            if self._rare(pattern):
                count = self._counts[pattern]
                evidence = {"pattern": pattern, "count": count, "total": self._total}
                fired[RARE] = evidence
            for kind, numbers in fired.items():
                if kind in self.signals:
                    yield Signal(
                        kind=kind,
                        task_id=group.task.id,
                        group_id=group.id,
                        index=index,
                        evidence=numbers,
                    )

    def _rare(self, pattern: Pattern) -> bool:
        return rare(
            self._counts,
            pattern,
            theta=self.theta,
            n_min=self.n_min,
            min_support=self.min_support,
            total=self._total,
        )

    def _push(self, group: Group) -> None:
        """Add the visit to its task's window: one entry a group, however many rollouts."""
        scores = [self._outcome(trajectory) for trajectory in group.trajectories]
        if not scores:
            return
        visit = Visit(math.fsum(scores) / len(scores), max(scores))
        self._windows.setdefault(group.task.id, deque(maxlen=self.window)).append(visit)

    def _warn_if_meaningless(self, found: Sequence[Signal], episodes: int) -> None:
        """Say once if more than half of all judged episodes are "rare".

        The share is taken over at least ``n_min`` judged episodes: a batch may be a single group,
        all of whose rollouts rightly do the same seldom thing.
        """
        if self._total < self.n_min:
            return
        self._tested += episodes
        self._flagged += sum(signal.kind == RARE for signal in found)
        if self._warned or self._tested < self.n_min or 2 * self._flagged <= self._tested:
            return
        self._warned = True
        logger.warning(
            "rare_share=%.2f distinct_patterns=%d: most episodes are called rare, so the signal "
            "says nothing. Describe behaviour more coarsely (curriculum.detector.pattern='set', or "
            "coarser step symbols of the benchmark), lower curriculum.detector.theta (now %g), or "
            "raise curriculum.detector.min_support (now %d). In Python: make_curriculum(..., "
            "detector={'pattern': 'set'}).",
            self._flagged / self._tested,
            len(self._counts),
            self.theta,
            self.min_support,
        )


def _visit(saved: tuple[float, float] | float) -> Visit:
    return Visit(*saved) if isinstance(saved, tuple) else Visit(saved, saved)
