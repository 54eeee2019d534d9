"""New tasks by how much they are like others, and rounds that keep a third of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Round, RoundResult, digest
from coevo_gym.core.seams import Evolver
from coevo_gym.core.task import Task
from coevo_gym.curricula.metrics import max_similarity
from coevo_gym.curricula.pool.embed import Embedder, HashingEmbedder

Bin = Literal["low", "mid", "high", "mixed"]
GATE = "similarity"
"""What takes the place of a gate in the verdict on a task that is in another bin."""
_SHARE = 5


class Bins(NamedTuple):
    """Places of tasks by how much they are like others, each in order.

    Attributes:
        low: the third that is least like them.
        mid: what is between, at least a third.
        high: the third that is most like them.
        mixed: some of each.
    """

    low: list[int]
    mid: list[int]
    high: list[int]
    mixed: list[int]


def similarity_bins(similarity: Sequence[float], n_mixed: int) -> Bins:
    """Thirds by rank, and a mix of them (CoEvolve, Table 13, which does not say how it cuts).

    Of n tasks, ``low`` and ``high`` have n // 3 each, and ``mid`` has the rest; equal ones rank in
    the order in which they come. The mix is made up alike: n_mixed // 3 of ``low`` and of ``high``,
    the rest of ``mid``, the first ones of each; where ``mid`` has not enough, the first that are
    left.

    Args:
        similarity: (n,) of each task.
        n_mixed: how many to mix; cut to n.

    Example:
        >>> similarity_bins([0.9, 0.1, 0.5, 0.4, 0.3, 0.7], 3)
        Bins(low=[1, 4], mid=[2, 3], high=[0, 5], mixed=[0, 1, 2])
    """
    n = len(similarity)
    ranked = [int(place) for place in np.argsort(np.asarray(similarity), kind="stable")]
    third = n // 3
    low, high = sorted(ranked[:third]), sorted(ranked[n - third :])
    mid = sorted(ranked[third : n - third])
    n_mixed = min(n_mixed, n)
    some = n_mixed // 3
    mixed = [*low[:some], *high[:some], *mid[: n_mixed - 2 * some]]
    rest = [place for place in range(n) if place not in mixed]
    mixed += rest[: n_mixed - len(mixed)]
    return Bins(low, mid, high, sorted(mixed))


def set_aside(tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """A fifth of some tasks, to compare others with, and the rest; by a hash of their ids.

    Example:
        >>> import coevo_gym
        >>> tasks = coevo_gym.tasks("webshop")
        >>> aside, rest = set_aside(tasks)
        >>> len(aside) + len(rest) == len(tasks), 0.1 < len(aside) / len(tasks) < 0.3
        (True, True)
    """
    aside, rest = list[Task](), list[Task]()
    for task in tasks:
        (rest if int(digest(["set aside", task.id]), 16) % _SHARE else aside).append(task)
    return aside, rest


def only_bin(
    result: RoundResult, bin: Bin, against: Sequence[Task], embedder: Embedder | None = None
) -> RoundResult:
    """A round that keeps the accepted tasks of one bin, and rejects the others.

    Args:
        result: what the round has found.
        bin: which of them to keep. ``mixed`` are as many as ``low`` and ``high``.
        against: what their instructions are compared with.
        embedder: turns instructions into vectors.
    """
    accepted = result.accepted
    if not accepted:
        return result
    embed = embedder or HashingEmbedder()
    texts, others = ([task.instruction for task in tasks] for tasks in (accepted, against))
    similarity = max_similarity(embed(texts), embed(others)).similarity
    bins = similarity_bins(similarity.tolist(), len(accepted) // 3)
    kept = {accepted[place].id for place in getattr(bins, bin)}
    likeness = {task.id: value for task, value in zip(accepted, similarity, strict=True)}
    verdicts = [
        verdict.model_copy(
            update={
                "accepted": False,
                "gate": GATE,
                "reason": f"its similarity of {likeness[verdict.task_id]:.3f} is not {bin}",
            }
        )
        if verdict.accepted and verdict.task_id in likeness.keys() - kept
        else verdict
        for verdict in result.verdicts
    ]
    return result.model_copy(
        update={
            "accepted": tuple(task for task in accepted if task.id in kept),
            "verdicts": tuple(verdicts),
        }
    )


class BinnedEvolver:
    """Carries out rounds as another evolver does, and keeps one bin of what is accepted.

    Args:
        evolver: who carries them out.
        bin: which tasks are kept.
        against: what they are compared with.

    Raises:
        ConfigError: if there is nothing to compare with.
    """

    def __init__(self, evolver: Evolver, bin: Bin, against: Sequence[Task]) -> None:
        if not against:
            raise ConfigError(
                f"gates.similarity.bin = {bin!r} compares new tasks with native training tasks, "
                "and none are set aside for that. Choose a benchmark that has some, or 'all'."
            )
        self.evolver, self.bin, self.against = evolver, bin, against

    def run(self, round: Round) -> RoundResult:
        """See :class:`~coevo_gym.core.seams.Evolver`."""
        return only_bin(self.evolver.run(round), self.bin, self.against)
