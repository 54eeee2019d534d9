"""The tasks that a proposed one is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Task
from coevo_gym.curricula.pool.embed import Embedder, HashingEmbedder, Vectors, nearest, words

_FILLER = frozenset({"a", "an", "the", "please", "and"})


class KnownTasks:
    """Tasks by id and by scenario, growing while a round finds more.

    Args:
        tasks: those known already.
        embedder: turns instructions into vectors; the default sees words and not their order.

    Example:
        >>> KnownTasks().has("0" * 64)
        False
    """

    def __init__(self, tasks: Iterable[Task] = (), *, embedder: Embedder | None = None) -> None:
        self.embedder = embedder or HashingEmbedder(bigrams=False)
        self._ids: set[str] = set()
        self._by_scenario: dict[str, list[Task]] = {}
        self._vectors: dict[str, Vectors] = {}
        for task in tasks:
            self.add(task)

    def add(self, task: Task) -> None:
        """Make a task known; doing so twice is fine."""
        if task.id not in self._ids:
            self._ids.add(task.id)
            self._by_scenario.setdefault(task.scenario, []).append(task)

    def has(self, id: str) -> bool:
        """Whether a task with this id is known."""
        return id in self._ids

    def copied_by(self, draft: Draft, threshold: float) -> Task | None:
        """The known task of the draft's scenario whose instruction it repeats, or None.

        A repetition has a cosine of at least ``threshold`` and the same content words, each as
        often. The cosine alone cannot tell a copy from a neighbour: one other colour among fifty
        words leaves 0.98 of it. So a reordered or retyped instruction is a copy, and one that
        differs in a colour, a number or a name is not.
        """
        candidates = self._by_scenario.get(draft.scenario, [])
        if not candidates:
            return None
        corpus = np.stack([self._vector(task) for task in candidates])
        found = nearest(self.embedder([draft.instruction]), corpus, len(candidates))
        for row, cosine in zip(found.rows[0], found.cosine[0], strict=True):
            task = candidates[int(row)]
            if cosine >= threshold and _content(task.instruction) == _content(draft.instruction):
                return task
        return None

    def _vector(self, task: Task) -> Vectors:
        if task.id not in self._vectors:
            self._vectors[task.id] = self.embedder([task.instruction])[0]
        return self._vectors[task.id]


def _content(text: str) -> Counter[str]:
    return Counter(word for word in words(text) if word not in _FILLER)
