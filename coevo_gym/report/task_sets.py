"""Statistics of a run's tasks: their positions on a map, and their diversity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coevo_gym.core.task import Task
from coevo_gym.curricula.pool.embed import HashingEmbedder, Vectors
from coevo_gym.curricula.pool.growing import GrowingSet
from coevo_gym.report.data import NAN, ArmLengths, ArmMap, ArmSpread, Place, Spread
from coevo_gym.report.words import spread
from coevo_gym.store.reader import RunReader

MAX_PLACES = 500
"""Maximum number of an arm's tasks on its map, and of held-out tasks. If there are more, an even
sample is drawn."""


class ArmTasks(NamedTuple):
    """The tasks that an arm practised, in order of arrival.

    Attributes:
        arm: name of the arm.
        first: the first task set (D_0).
        rounds: tasks found by each later round.
    """

    arm: str
    first: tuple[Task, ...]
    rounds: tuple[tuple[Task, ...], ...]


def spread_of(tasks: ArmTasks) -> ArmSpread:
    """Return SR@5 and ED_rel of an arm's pool after each round."""
    embed = HashingEmbedder()
    pool = GrowingSet(embed(_asked(tasks.first)))
    rows = [Spread(0, pool.self_similarity, NAN)]
    for number, found in enumerate(tasks.rounds, start=1):
        pool.add(embed(_asked(found)))
        rows.append(Spread(number, pool.self_similarity, pool.distance))
    return ArmSpread(tasks.arm, tuple(rows))


def maps_of(arms: Sequence[ArmTasks], held_out: Sequence[Task]) -> tuple[ArmMap, ...]:
    """Return one map per arm, with the same axes for all arms.

    The axes are the two directions in which the words of all these tasks vary most.
    """
    drawn = {arm.arm: _drawn(arm) for arm in arms}
    held = [held_out[i] for i in spread(len(held_out), MAX_PLACES)]
    texts = {task.id: task.instruction for task in held}
    texts |= {task.id: task.instruction for found in drawn.values() for _, task in found}
    if len(texts) < 3:
        return ()
    at, shares = plane(HashingEmbedder()(list(texts.values())))
    places = {id: (float(x), float(y)) for id, (x, y) in zip(texts, at, strict=True)}
    grey = tuple(Place(*places[task.id]) for task in held)
    return tuple(
        ArmMap(
            arm,
            tuple(Place(*places[task.id], number, task.instruction) for number, task in found),
            grey,
            shares,
        )
        for arm, found in drawn.items()
    )


def plane(rows: Vectors) -> tuple[Vectors, tuple[float, float]]:
    """Project vectors to two dimensions by principal component analysis.

    Args:
        rows: (n, dim) vectors.

    Returns:
        (n, 2) coordinates, and the shares of the variance that the two axes show. The largest entry
        of each axis is positive, so that pictures are not mirrored on other machines.
    """
    centred = rows - rows.mean(axis=0)
    # Use the smaller product: of the rows if there are few, else of the columns.
    if len(rows) <= centred.shape[1]:
        values, vectors = np.linalg.eigh(centred @ centred.T)
        axes = centred.T @ vectors[:, :-3:-1]
        lengths = np.linalg.norm(axes, axis=0)
        axes = axes / np.where(lengths > 1e-12, lengths, 1.0)
    else:
        values, vectors = np.linalg.eigh(centred.T @ centred)
        axes = vectors[:, :-3:-1]
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(2)])
    axes = axes * np.where(signs == 0, 1.0, signs)
    total = float(np.maximum(values, 0.0).sum())
    shares = (np.maximum(values[:-3:-1], 0.0) / total).tolist() if total > 0 else [NAN, NAN]
    return centred @ axes, (shares[0], shares[1])


def lengths_of(reader: RunReader, policies: Sequence[str]) -> tuple[ArmLengths, ...]:
    """Return the episode lengths of each policy's last evaluation, if stored."""
    found = []
    for policy in policies:
        steps = reader.evaluation_steps(policy)
        if steps:
            ends = reader.evaluation(policy, steps[-1])
            of: Mapping[bool, tuple[int, ...]] = {
                success: tuple(end.steps for end in ends if end.success is success)
                for success in (True, False)
            }
            found.append(ArmLengths(policy, of[True], of[False]))
    return tuple(found)


def _drawn(arm: ArmTasks) -> list[tuple[int, Task]]:
    """Return the sampled tasks of an arm, each with the number of its round."""
    numbered = [(0, task) for task in arm.first]
    numbered += [
        (number, task) for number, found in enumerate(arm.rounds, start=1) for task in found
    ]
    return [numbered[i] for i in spread(len(numbered), MAX_PLACES)]


def _asked(tasks: Sequence[Task]) -> list[str]:
    return [task.instruction for task in tasks]
