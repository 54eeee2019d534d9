"""Targets: what rounds look for so that a pool covers more, chosen before anything is executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.random import Generator

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Context, Round
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.growth.choice import Offer
from coevo_gym.curricula.pool.pool import require_train
from coevo_gym.curricula.saved import Count, read
from coevo_gym.curricula.signals.kinds import TARGET
from coevo_gym.envs.tags import kind_of_tag, tags_of, value_of_tag

PROPOSED = 3
"""So many plans are proposed for each one that is chosen."""


class Plan(NamedTuple):
    """Where to start, and what to look for there.

    Attributes:
        task: a native training task.
        target: tags of the task that is looked for.
    """

    task: Task
    target: tuple[str, ...]

    @property
    def context(self) -> Context:
        """The order to an explorer."""
        told = (f"{kind_of_tag(tag)} {value_of_tag(tag)}" for tag in self.target)
        return Context(
            kind=TARGET,
            task=self.task,
            summary=f"To be found: {', '.join(told)}.",
            target=self.target,
        )


def cover(targets: Sequence[Sequence[str]], counts: Mapping[str, int], n: int) -> list[int]:
    """Targets that add most to what is covered, one after the other.

    A target's score is the mean over its tags of 1 / (1 + count). The one with the highest score is
    taken, the first of equals; its tags are counted as if it had been found; and so on.

    Args:
        targets: the tags of each; one without tags scores 0.
        counts: how often each tag is there already.
        n: how many to take, each once; cut to the number of targets.

    Returns:
        Positions in the order in which they were taken.

    Example:
        >>> cover([("a:1", "b:1"), ("a:1", "b:2"), ("a:2", "b:3")], {"a:1": 9, "b:1": 1}, 2)
        [2, 1]
    """
    names = {
        tag: column for column, tag in enumerate(dict.fromkeys(t for ts in targets for t in ts))
    }
    has = np.zeros((len(targets), len(names)))  # (targets, tags)
    for row, tags in enumerate(targets):
        has[row, [names[tag] for tag in tags]] = 1.0
    sizes = np.maximum(has.sum(axis=1), 1.0)
    seen = np.array([counts.get(tag, 0) for tag in names], dtype=np.float64)
    chosen: list[int] = []
    for _ in range(min(n, len(targets))):
        scores = (has @ (1.0 / (1.0 + seen))) / sizes
        scores[chosen] = -1.0
        best = int(np.argmax(scores))
        chosen.append(best)
        seen += has[best]
    return chosen


def tag_counts(tasks: Sequence[Task]) -> Counter[str]:
    """How many of some tasks have each tag."""
    return Counter(tag for task in tasks for tag in tags_of(task))


class Coverage:
    """Looks for tasks with tags that the pool has seldom.

    Of :data:`PROPOSED` times as many plans as there are drafts, each a native training task drawn
    at random and its tags, those are chosen that :func:`cover` the most; nothing is executed for
    the others. A target that was explored in vain counts as one that the pool has, so that what
    cannot be found here is not looked for again and again.

    Args:
        native: training tasks to start at; None for all of the pool's benchmark.
    """

    looks_back: ClassVar[bool] = False

    def __init__(self, native: Sequence[Task] | None = None) -> None:
        self.native = native
        self._aimed: dict[str, tuple[str, ...]] = {}
        self._in_vain: Counter[str] = Counter()

    def record(self, groups: Sequence[Group]) -> None:
        """Outcomes do not matter."""

    def choose(self, offer: Offer, n: int, rng: Generator) -> list[Context]:
        """One context for each draft; see :class:`~coevo_gym.curricula.growth.choice.Choice`."""
        found = {task.provenance.get("context") for task in offer.pool}
        for context, target in self._aimed.items():
            if context not in found:
                self._in_vain.update(target)
        counts = tag_counts(offer.pool) + self._in_vain
        contexts = [plan.context for plan in plans(self._starts(offer), counts, offer.drafts, rng)]
        self._aimed = {context.id: context.target for context in contexts}
        return contexts

    def _starts(self, offer: Offer) -> Sequence[Task]:
        if self.native is not None:
            return self.native
        return get_benchmark(offer.pool[0].benchmark).tasks(Split.TRAIN)

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        aimed = {context: list(target) for context, target in self._aimed.items()}
        return {"aimed": aimed, "in_vain": dict(self._in_vain)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`, also that of a choice without state."""
        self._aimed = read(dict[str, tuple[str, ...]], state.get("aimed", {}))
        self._in_vain = Counter(read(dict[str, Count], state.get("in_vain", {})))


def plans(
    native: Sequence[Task],
    counts: Mapping[str, int],
    n: int,
    rng: Generator,
    *,
    spare: bool = False,
) -> list[Plan]:
    """The ``n`` plans that cover most, of :data:`PROPOSED` times as many.

    Args:
        native: training tasks to start at.
        counts: how often each tag is there already.
        n: how many. Where there are few native tasks, some are proposed more than once.
        rng: the only source of chance.
        spare: whether the others follow, in the same order, in case that some find nothing.

    Raises:
        ConfigError: if there is no native task.
        SplitLeakError: if one that is drawn is no training task.
    """
    if not len(native):
        raise ConfigError(
            "There is no native training task to aim at. Give the curriculum some (native=…), or "
            "set curriculum.growth.kind and curriculum.initial to what explores without targets."
        )
    places = islice(_places(len(native), rng), PROPOSED * n)
    drawn = [require_train(native[place], "explore from") for place in places]
    proposed = [Plan(task, tags_of(task)) for task in drawn]
    taken = cover([plan.target for plan in proposed], counts, len(proposed) if spare else n)
    return [proposed[place] for place in taken]


def _places(n: int, rng: Generator) -> Iterator[int]:
    """Places of native tasks, each as often as any other, give or take one."""
    while True:
        yield from rng.permutation(n).tolist()


def first_targets(native: Sequence[Task], n: int, *, seed: int) -> Round:
    """The round that finds a first task set by coverage: the ``n`` best plans, or the next ones.

    Args:
        native: training tasks to start at.
        n: how many tasks to find.
        seed: of the plans, and of the round.
    """
    chosen = plans(native, {}, n, np.random.default_rng(seed), spare=True)
    contexts = tuple(plan.context for plan in chosen)
    return Round(id="round-0", contexts=contexts, n_enough=n, budget=len(contexts), seed=seed)


def first_round(n: int, initial: str, *, native: Sequence[Task], seed: int) -> Round:
    """The round that finds the first ``n`` tasks (D_0).

    Args:
        n: how many tasks to find.
        initial: ``unguided``, or ``coverage`` for :func:`first_targets`.
        native: training tasks that targets are planned from.
        seed: of all chance in it.
    """
    if initial == "coverage":
        return first_targets(native, n, seed=seed)
    return Round.unguided(n, seed=seed)
