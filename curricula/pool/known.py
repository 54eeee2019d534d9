"""The tasks that a proposed one is compared with."""

from __future__ import annotations

from collections.abc import Iterable

from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Task
from coevo_gym.curricula.pool.embed import Embedder, HashingEmbedder, nearest, words

Content = tuple[str, ...]

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
        self._alike: dict[tuple[str, Content], list[Task]] = {}
        self._around: dict[str, list[Task]] = {}  # by scenario, and by the ids of their parents
        self._all: list[Task] = []
        for task in tasks:
            self.add(task)

    def add(self, task: Task) -> None:
        """Make a task known; doing so twice is fine."""
        if task.id not in self._ids:
            self._ids.add(task.id)
            self._all.append(task)
            self._alike.setdefault((task.scenario, _content(task.instruction)), []).append(task)
            for place in {task.scenario, *task.parents}:
                self._around.setdefault(place, []).append(task)

    def has(self, id: str) -> bool:
        """Whether a task with this id is known."""
        return id in self._ids

    def around(self, task: Task, n: int) -> list[Task]:
        """Up to ``n`` tasks of a task's scenario or grown from it, the latest ones of each last.

        Args:
            task: need not be known; left out if it is.
            n: how many at most; those that grew from the task go before others.
        """
        found = [
            other
            for place in (task.scenario, task.id)
            for other in self._around.get(place, ())[-n - 1 :]
            if other.id != task.id
        ]
        return list({other.id: other for other in found}.values())[-n:]

    def latest(self, n: int) -> list[Task]:
        """Up to ``n`` tasks of any scenario, the latest one last."""
        return self._all[-n:]

    def has_scenario(self, scenario: str) -> bool:
        """Whether a task of this scenario is known."""
        return scenario in self._around

    def most_alike(self, draft: Draft) -> tuple[Task, float] | None:
        """The known task of the draft's scenario that shares most words with it, and how many.

        Returns:
            The task, the first of equal ones, and the Jaccard index of the two sets of words, in
            [0, 1]; None if no task of the scenario is known.
        """
        mine = frozenset(words(draft.instruction))
        scored = [
            (jaccard(mine, frozenset(words(task.instruction))), task)
            for task in self._around.get(draft.scenario, ())
        ]
        if not scored:
            return None
        share, task = max(scored, key=lambda pair: pair[0])
        return task, share

    def copied_by(self, draft: Draft, threshold: float) -> Task | None:
        """The known task of the draft's scenario whose instruction it repeats, or None.

        A repetition has a cosine of at least ``threshold`` and the same content words, each as
        often. The cosine alone cannot tell a copy from a neighbour: one other colour among fifty
        words leaves 0.98 of it. So a reordered or retyped instruction is a copy, and one that
        differs in a colour, a number or a name is not.

        Tasks are kept by their content words, so only those with the same ones are compared: the
        time does not grow with the number of tasks, and no copy is missed.
        """
        alike = self._alike.get((draft.scenario, _content(draft.instruction)), [])
        if not alike:
            return None
        corpus = self.embedder([task.instruction for task in alike])
        found = nearest(self.embedder([draft.instruction]), corpus, 1)
        return alike[int(found.rows[0, 0])] if found.cosine[0, 0] >= threshold else None


def jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    """|a ∩ b| / |a ∪ b|; 1 for two empty sets.

    Example:
        >>> jaccard(frozenset({"red", "mug"}), frozenset({"blue", "mug"}))
        0.3333333333333333
    """
    union = a | b
    return len(a & b) / len(union) if union else 1.0


def _content(text: str) -> Content:
    """The words that matter, each as often as it is there, in no order."""
    return tuple(sorted(word for word in words(text) if word not in _FILLER))
