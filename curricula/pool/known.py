"""The tasks that a proposed one is compared with."""

from __future__ import annotations

from collections.abc import Iterable

from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Task
from coevo_gym.curricula.pool.embed import words

Content = tuple[str, ...]

_FILLER = frozenset({"a", "an", "the", "and", "then", "also", "please", "kindly"})
"""Words without which an instruction asks for the same."""


class KnownTasks:
    """Tasks by id and by scenario, growing while a round finds more.

    Args:
        tasks: those known already.

    Example:
        >>> KnownTasks().has("0" * 64)
        False
    """

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self._ids: set[str] = set()
        self._alike: dict[tuple[str, Content], Task] = {}
        self._around: dict[str, list[Task]] = {}  # by scenario, and by the ids of their parents
        self._all: list[Task] = []
        for task in tasks:
            self.add(task)

    def add(self, task: Task) -> None:
        """Make a task known; doing so twice is fine."""
        if task.id not in self._ids:
            self._ids.add(task.id)
            self._all.append(task)
            self._alike.setdefault((task.scenario, _content(task.instruction)), task)
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

    def copied_by(self, draft: Draft) -> Task | None:
        """Return the known task of the draft's scenario whose instruction it repeats, or None.

        A repetition has the same content words, each as often, in any order: it is reordered,
        retyped, or differs in filler words only. One that differs in a colour, a number or a name
        is none.
        """
        return self._alike.get((draft.scenario, _content(draft.instruction)))


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
