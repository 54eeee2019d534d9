"""Rules for choosing the contexts that a round explores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from coevo_gym.core.evolution import Context
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.growth.contexts import draw_by_kind, draw_contexts
from coevo_gym.curricula.pool.embed import HashingEmbedder, normalise
from coevo_gym.curricula.saved import validate
from coevo_gym.curricula.selectors.base import TableSelector
from coevo_gym.curricula.selectors.learnable import Learnable
from coevo_gym.curricula.selectors.learning_progress import ProgressConfig, progress_nearby
from coevo_gym.curricula.signals import COVERAGE, LEARNABLE, PROGRESS


def farthest_first(points: ArrayLike, covered: ArrayLike, k: int) -> list[int]:
    """Choose points that are far from all covered points and from each other.

    Each choice minimises the largest cosine to any covered or chosen point. Ties go to the first
    point; if there are no covered points, the first point is chosen first.

    Args:
        points: (n, dim) vectors of any norm.
        covered: (m, dim) vectors of any norm; m may be 0.
        k: number of points to choose, at most n.

    Returns:
        Indices of the points, in the order in which they were chosen.

    Example:
        >>> farthest_first([[1, 0], [0, 1], [-1, 0]], [[1, 0]], 2)
        [2, 1]

    Source: Gonzalez' k-centre heuristic (1985), with cosine similarity in place of distance.
    """
    rows = normalise(np.asarray(points, dtype=np.float64))
    seen = np.asarray(covered, dtype=np.float64)
    likeness = np.full(len(rows), -np.inf)
    if len(seen):
        likeness = (rows @ normalise(seen).T).max(axis=1)
    chosen: list[int] = []
    for _ in range(min(k, len(rows))):
        best = int(np.argmin(likeness))
        chosen.append(best)
        likeness = np.maximum(likeness, rows @ rows[best])
        likeness[chosen] = np.inf
    return chosen


class Quota(NamedTuple):
    """The number of contexts of each kind."""

    guided: int
    coverage: int


def quota(n: int, share: float, *, guided: int, coverage: int) -> Quota:
    """Split ``n`` contexts between two kinds; if one kind has too few, the other kind gets more.

    Args:
        n: number of contexts.
        share: share of guided contexts, in [0, 1]; the resulting number is rounded up.
        guided: number of available guided contexts.
        coverage: number of available coverage contexts.

    Example:
        >>> quota(8, 0.5, guided=2, coverage=100)
        Quota(guided=2, coverage=6)
    """
    wanted = math.ceil(round(share * n, 9))
    others = min(coverage, n - min(wanted, guided))
    return Quota(min(guided, n - others), others)


class Offer(NamedTuple):
    """The material from which a round's contexts are chosen.

    Attributes:
        pending: contexts from signals since the last round.
        practised: contexts from the last rollout on each task since the last round; recorded only
            for rules with ``looks_back``.
        pool: all tasks in the pool.
        drafts: number of drafts that the round tries, divided equally among its contexts. With as
            many contexts as drafts, each context gets one draft.
    """

    pending: Sequence[Context]
    practised: Sequence[Context]
    pool: Sequence[Task]
    drafts: int


class ContextChoice:
    """Base class for rules that choose a round's contexts; by default, rounds are unguided.

    Attributes:
        looks_back: True if the rule starts from training tasks or learns from finished groups.
    """

    looks_back: ClassVar[bool] = False

    def record(self, groups: Sequence[Group]) -> None:
        """Record finished groups; this method is called only if ``looks_back`` is True."""

    def choose(self, offer: Offer, n: int, rng: Generator) -> list[Context]:
        """Return the contexts for a round; an empty list makes the round unguided.

        Args:
            offer: the candidates.
            n: number of contexts to explore. A rule that creates its own contexts may use
                ``offer.drafts`` instead.
            rng: the only source of randomness.
        """
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""


class BySignals(ContextChoice):
    """A rule that chooses contexts from signals, alternating between kinds of signals."""

    def choose(self, offer: Offer, n: int, rng: Generator) -> list[Context]:
        """Choose the contexts to explore in a round; see :class:`ContextChoice`."""
        return draw_by_kind(offer.pending, min(n, len(offer.pending)), rng)


class Blindly(ContextChoice):
    """A rule that samples uniformly from recent training tasks, regardless of their outcomes."""

    looks_back = True

    def choose(self, offer: Offer, n: int, rng: Generator) -> list[Context]:
        """Choose the contexts to explore in a round; see :class:`ContextChoice`."""
        return draw_contexts(offer.practised, n, rng) if offer.practised else []


class Ranked(ContextChoice):
    """Base class for rules that choose the recent training tasks with the highest scores.

    Args:
        numbers: selector whose task statistics are used. Ties are broken at random.
    """

    looks_back = True

    def __init__(self, numbers: TableSelector) -> None:
        self.numbers = numbers

    def record(self, groups: Sequence[Group]) -> None:
        """Record finished groups."""
        self.numbers.added([group.task for group in groups])
        self.numbers.record(groups)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return self.numbers.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        self.numbers.load_state_dict(state)

    def best_contexts(
        self,
        practised: Sequence[Context],
        scores: Sequence[float],
        n: int,
        rng: Generator,
        *,
        kind: str,
        summary: str,
    ) -> list[Context]:
        """Return the ``n`` contexts with the highest scores, labelled with the given kind."""
        shuffled = rng.permutation(len(practised))
        order = shuffled[np.argsort(-np.array([scores[i] for i in shuffled]), kind="stable")]
        return [
            practised[i].model_copy(
                update={"kind": kind, "summary": summary.format(score=scores[i])}
            )
            for i in order[:n]
        ]

    def add_rows(self, practised: Sequence[Context]) -> list[int]:
        """Add new tasks to the table, and return the row index of each context's task."""
        self.numbers.added([context.task for context in practised])
        rows = (self.numbers.table.row_index(context.task.id) for context in practised)
        return [row for row in rows if row is not None]


class ByLearnability(Ranked):
    """A rule that chooses tasks that are solved about half the time."""

    def __init__(self) -> None:
        super().__init__(Learnable())

    def choose(self, offer: Offer, n: int, rng: Generator) -> list[Context]:
        """Choose the contexts to explore in a round; see :class:`ContextChoice`."""
        weights = self.numbers.weights()
        assert weights is not None
        scores = weights[self.add_rows(offer.practised)].tolist()
        summary = "Solved now and then: p(1 - p) is {score:.2f} for its pass rate p."
        return self.best_contexts(offer.practised, scores, n, rng, kind=LEARNABLE, summary=summary)


class ByProgress(Ranked):
    """A rule that chooses tasks similar to tasks whose pass rate is changing."""

    def __init__(self) -> None:
        super().__init__(ProgressConfig().make())
        self.embed = HashingEmbedder()

    def choose(self, offer: Offer, n: int, rng: Generator) -> list[Context]:
        """Choose the contexts to explore in a round; see :class:`ContextChoice`."""
        table, rows = self.numbers.table, self.add_rows(offer.practised)
        fast, slow = table["fast"][rows], table["slow"][rows]
        vectors = self.embed([context.task.instruction for context in offer.practised])
        scores = [progress_nearby(vector, vectors, fast, slow) for vector in vectors]
        summary = "The pass rate on tasks like this one has recently changed by {score:.2f}."
        return self.best_contexts(offer.practised, scores, n, rng, kind=PROGRESS, summary=summary)


class ByCoverage(ContextChoice):
    """A rule that chooses the recent training tasks that are least similar to explored tasks."""

    looks_back = True

    def __init__(self) -> None:
        self.embed = HashingEmbedder()
        self._explored: dict[str, None] = {}

    def choose(self, offer: Offer, n: int, rng: Generator) -> list[Context]:
        """Choose the contexts to explore in a round; see :class:`ContextChoice`."""
        shuffled = [offer.practised[int(i)] for i in rng.permutation(len(offer.practised))]
        covered = [task.instruction for task in offer.pool if task.id in self._explored]
        points = self.embed([context.task.instruction for context in shuffled])
        chosen = [shuffled[i] for i in farthest_first(points, self.embed(covered), n)]
        self._explored |= dict.fromkeys(context.task.id for context in chosen)
        summary = "Unlike what was explored before."
        return [c.model_copy(update={"kind": COVERAGE, "summary": summary}) for c in chosen]

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {"explored": list(self._explored)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        self._explored = dict.fromkeys(validate(list[str], state["explored"]))


class Mixed(ByCoverage):
    """A rule that chooses half of the contexts by signals and the other half by coverage."""

    def choose(self, offer: Offer, n: int, rng: Generator) -> list[Context]:
        """Choose the contexts to explore in a round; see :class:`ContextChoice`."""
        n_each = quota(n, 0.5, guided=len(offer.pending), coverage=len(offer.practised))
        guided = draw_by_kind(offer.pending, n_each.guided, rng)
        return guided + super().choose(offer, n_each.coverage, rng)


GUIDED: Mapping[str, Callable[[], ContextChoice]] = MappingProxyType(
    {
        "signals": BySignals,
        "coverage": ByCoverage,
        "learnable": ByLearnability,
        "progress": ByProgress,
        "mixed": Mixed,
    }
)
"""Rules that start from recent training tasks, by name."""
