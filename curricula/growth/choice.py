"""Which places a round explores, once it is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.random import Generator

from coevo_gym.core.evolution import Context
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.growth.contexts import drawn, shared_out
from coevo_gym.curricula.growth.coverage import farthest_first, quota
from coevo_gym.curricula.pool.embed import HashingEmbedder
from coevo_gym.curricula.saved import read
from coevo_gym.curricula.selectors.base import TableSelector
from coevo_gym.curricula.selectors.learnable import Learnable
from coevo_gym.curricula.selectors.progress import Progress, progress_nearby
from coevo_gym.curricula.signals.kinds import ALL_SIGNALS, COVERAGE, LEARNABLE, PROGRESS


class Offer(NamedTuple):
    """What a round may start from.

    Attributes:
        pending: contexts of the signals since the last round.
        practised: the last rollout on each task since then, as a context; kept for choices that
            say so (``looks_back``).
        pool: all tasks.
        drafts: how many drafts the round tries. Its contexts share them equally, so as many
            contexts make one draft each.
    """

    pending: Sequence[Context]
    practised: Sequence[Context]
    pool: Sequence[Task]
    drafts: int


class Choice(Protocol):
    """Chooses contexts; pure.

    Attributes:
        looks_back: whether it starts from practised tasks, or learns from finished groups.
    """

    looks_back: ClassVar[bool]

    def record(self, groups: Sequence[Group]) -> None:
        """Take in finished groups; called if it looks back."""
        ...

    def choose(self, offer: Offer, n: int, rng: Generator) -> list[Context]:
        """The contexts of a round; none for one that explores anywhere, without guidance.

        Args:
            offer: what there is to start from.
            n: how many places the round is to explore. A choice that finds places of its own may
                go by ``offer.drafts`` instead.
            rng: the only source of chance.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        ...


class Stateless:
    """A choice that looks at nothing but the offer."""

    looks_back: ClassVar[bool] = False

    def record(self, groups: Sequence[Group]) -> None:
        """Nothing to learn."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing to save."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""


class BySignals(Stateless):
    """Where signals fired, their kinds taking turns."""

    def choose(self, offer: Offer, n: int, rng: Generator) -> list[Context]:
        """See :class:`Choice`."""
        return shared_out(offer.pending, min(n, len(offer.pending)), rng, kinds=ALL_SIGNALS)


class Anywhere(Stateless):
    """No place in particular: the explorer goes wherever the training scenarios lead."""

    def choose(self, offer: Offer, n: int, rng: Generator) -> list[Context]:
        """See :class:`Choice`."""
        return []


class Blindly(Stateless):
    """Where the agent practised, whatever happened there."""

    looks_back = True

    def choose(self, offer: Offer, n: int, rng: Generator) -> list[Context]:
        """See :class:`Choice`."""
        return drawn(offer.practised, n, rng) if offer.practised else []


class Ranked:
    """The practised tasks that score highest, ties at random.

    Args:
        numbers: keeps what is known of each task; a selector, of which only the numbers are used.
    """

    looks_back: ClassVar[bool] = True

    def __init__(self, numbers: TableSelector) -> None:
        self.numbers = numbers

    def record(self, groups: Sequence[Group]) -> None:
        """Take in finished groups."""
        self.numbers.added([group.task for group in groups])
        self.numbers.record(groups)

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        return self.numbers.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.numbers.load_state_dict(state)

    def best(
        self,
        practised: Sequence[Context],
        scores: Sequence[float],
        n: int,
        rng: Generator,
        *,
        kind: str,
        summary: str,
    ) -> list[Context]:
        """The ``n`` contexts with the highest scores, as contexts of this kind."""
        shuffled = rng.permutation(len(practised))
        order = shuffled[np.argsort(-np.array([scores[i] for i in shuffled]), kind="stable")]
        return [
            practised[i].model_copy(
                update={"kind": kind, "summary": summary.format(score=scores[i])}
            )
            for i in order[:n]
        ]

    def rows(self, practised: Sequence[Context]) -> list[int]:
        """The row of each context's task."""
        self.numbers.added([context.task for context in practised])
        rows = (self.numbers.table.row(context.task.id) for context in practised)
        return [row for row in rows if row is not None]


class ByLearnability(Ranked):
    """Tasks that are solved about half of the time."""

    def __init__(self) -> None:
        super().__init__(Learnable())

    def choose(self, offer: Offer, n: int, rng: Generator) -> list[Context]:
        """See :class:`Choice`."""
        weights = self.numbers.weights()
        assert weights is not None
        scores = weights[self.rows(offer.practised)].tolist()
        summary = "Solved now and then: p(1 - p) of its pass rate is {score:.2f}."
        return self.best(offer.practised, scores, n, rng, kind=LEARNABLE, summary=summary)


class ByProgress(Ranked):
    """Tasks near to those whose pass rate is changing."""

    def __init__(self) -> None:
        super().__init__(Progress())
        self.embed = HashingEmbedder()

    def choose(self, offer: Offer, n: int, rng: Generator) -> list[Context]:
        """See :class:`Choice`."""
        table, rows = self.numbers.table, self.rows(offer.practised)
        fast, slow = table["fast"][rows], table["slow"][rows]
        vectors = self.embed([context.task.instruction for context in offer.practised])
        scores = [progress_nearby(vector, vectors, fast, slow) for vector in vectors]
        summary = "On tasks like this one the pass rate is changing, by {score:.2f} of late."
        return self.best(offer.practised, scores, n, rng, kind=PROGRESS, summary=summary)


class ByCoverage:
    """Practised tasks whose instructions are least like those explored from before."""

    looks_back: ClassVar[bool] = True

    def __init__(self) -> None:
        self.embed = HashingEmbedder()
        self._explored: dict[str, None] = {}

    def record(self, groups: Sequence[Group]) -> None:
        """Outcomes do not matter."""

    def choose(self, offer: Offer, n: int, rng: Generator) -> list[Context]:
        """See :class:`Choice`."""
        shuffled = [offer.practised[int(i)] for i in rng.permutation(len(offer.practised))]
        covered = [task.instruction for task in offer.pool if task.id in self._explored]
        points = self.embed([context.task.instruction for context in shuffled])
        chosen = [shuffled[i] for i in farthest_first(points, self.embed(covered), n)]
        self._explored |= dict.fromkeys(context.task.id for context in chosen)
        summary = "Unlike what was explored before."
        return [c.model_copy(update={"kind": COVERAGE, "summary": summary}) for c in chosen]

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        return {"explored": list(self._explored)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self._explored = dict.fromkeys(read(list[str], state["explored"]))


class Mixed(ByCoverage):
    """Half of the places where signals fired, half for coverage.

    Args:
        share: of the places that signals get.
    """

    def __init__(self, share: float = 0.5) -> None:
        super().__init__()
        self.share = share

    def choose(self, offer: Offer, n: int, rng: Generator) -> list[Context]:
        """See :class:`Choice`."""
        n_each = quota(n, self.share, guided=len(offer.pending), coverage=len(offer.practised))
        guided = shared_out(offer.pending, n_each.guided, rng, kinds=ALL_SIGNALS)
        return guided + super().choose(offer, n_each.coverage, rng)


GUIDED: Mapping[str, Callable[[], Choice]] = MappingProxyType(
    {
        "signals": BySignals,
        "coverage": ByCoverage,
        "learnable": ByLearnability,
        "progress": ByProgress,
        "mixed": Mixed,
    }
)
"""Choices that start from what the agent has practised, by name."""
