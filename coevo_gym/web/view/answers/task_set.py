"""The task sets of a run's arms: a map, diversity, and similarity to the held-out tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coevo_gym.core.errors import CoevoError
from coevo_gym.core.waiting import only_looking
from coevo_gym.curricula.metrics import max_similarity
from coevo_gym.curricula.pool.embed import HashingEmbedder, Vectors
from coevo_gym.curricula.pool.growing import diversity
from coevo_gym.run.assembly import Assembly
from coevo_gym.web.view.answers.measures import FIRST
from coevo_gym.web.view.index.filling import brief
from coevo_gym.web.view.numbers import spread
from coevo_gym.web.view.shapes.measures import ArmTaskSet, MappedTask, Similarity, TaskSet
from coevo_gym.web.view.shelf import ShownRun

MOST_MAPPED = 300
"""Maximum number of an arm's tasks on the map, and of held-out tasks."""
_BLOCK, _ITERATIONS = 12, 40


class Asked(NamedTuple):
    """A task's id and instruction."""

    id: str
    text: str


def task_set(run: ShownRun) -> TaskSet:
    """Return the task sets of the arms that evolved.

    Raises:
        Damaged: if the run cannot be read.
    """
    if not run.folder.database.is_file():
        return TaskSet(arms=(), held_out=(), shown=None, similarity=())

    def compare() -> TaskSet:
        arms = _found_by_arm(run)
        return _compared(arms, _held_out(run) if arms else ())

    found: TaskSet = run.kept("task set", compare)
    return found


def _found_by_arm(run: ShownRun) -> dict[str, list[list[Asked]]]:
    """Return the tasks of each arm that evolved: the first task set, then those of each round."""
    texts = run.reader.instructions()
    rounds = "SELECT arm, id FROM rounds ORDER BY number"
    found: dict[str, dict[str, list[Asked]]] = {}
    for arm, round_id in run.index.rows(rounds):
        found.setdefault(arm, {})[round_id] = []
    tasks = "SELECT DISTINCT arm, round_id, task_id FROM lineage"
    for arm, round_id, id in run.index.rows(tasks):
        if id in texts and round_id in found.get(arm, {}):
            found[arm][round_id].append(Asked(id, texts[id]))
    sets = {arm: list(of.values()) for arm, of in found.items()}
    return {arm: of for arm, of in sets.items() if len(of) > 1}


def _held_out(run: ShownRun) -> Sequence[Asked]:
    """Return the tasks that arms are compared on; none if the benchmark is not installed."""
    config = run.config

    def read() -> tuple[Asked, ...]:
        try:
            with only_looking():
                tasks = Assembly(config).held_out_tasks
        except CoevoError:
            return ()
        return tuple(Asked(task.id, task.instruction) for task in tasks)

    found: tuple[Asked, ...] = run.kept("held-out instructions", read, until=config)
    return found


def _compared(arms: Mapping[str, list[list[Asked]]], held_out: Sequence[Asked]) -> TaskSet:
    drawn = {arm: _sample(sets) for arm, sets in arms.items()}
    shown = [held_out[i] for i in spread(len(held_out), MOST_MAPPED)] if arms else []
    texts = dict(shown) | {task.id: task.text for found in drawn.values() for _, task in found}
    at, share = plane(HashingEmbedder()(list(texts.values())))
    places = {id: (float(x), float(y)) for id, (x, y) in zip(texts, at, strict=True)}
    return TaskSet(
        arms=tuple(_arm(arm, sets, drawn[arm], places) for arm, sets in arms.items()),
        held_out=tuple(places[id] for id, _ in shown),
        shown=share if math.isfinite(share) else None,
        similarity=tuple(_similarity(arms, [text for _, text in held_out])),
    )


def _sample(sets: Sequence[Sequence[Asked]]) -> list[tuple[int, Asked]]:
    """Return an even sample of an arm's tasks, each with the number of its round."""
    numbered = [(number, task) for number, found in enumerate(sets) for task in found]
    return [numbered[i] for i in spread(len(numbered), MOST_MAPPED)]


def _arm(
    arm: str,
    sets: Sequence[Sequence[Asked]],
    drawn: Sequence[tuple[int, Asked]],
    places: Mapping[str, tuple[float, float]],
) -> ArmTaskSet:
    found = diversity([[task.text for task in tasks] for tasks in sets])
    return ArmTaskSet(
        arm=arm,
        tasks=tuple(
            MappedTask(
                id=task.id,
                instruction=brief(task.text),
                x=places[task.id][0],
                y=places[task.id][1],
                round=number,
            )
            for number, task in drawn
        ),
        self_similarity=tuple(_known(one.self_similarity) for one in found),
        distance=tuple(_known(one.distance) for one in found),
    )


def _similarity(
    arms: Mapping[str, Sequence[Sequence[Asked]]], held_out: Sequence[str]
) -> Iterator[Similarity]:
    if not held_out:
        return
    embed = HashingEmbedder()
    wanted = embed(list(held_out))
    sets = {FIRST: {task for found in arms.values() for task in found[0]}}
    for arm, (_, *later) in arms.items():
        sets[f"evolved by {arm}"] = {task for found in later for task in found}
    for label, tasks in sets.items():
        if tasks:
            counts = max_similarity(embed([task.text for task in tasks]), wanted).counts
            yield Similarity(label=label, counts=tuple(int(n) for n in counts))


def plane(rows: Vectors) -> tuple[Vectors, float]:
    """Project vectors to two dimensions by principal component analysis.

    Args:
        rows: (n, dim) vectors.

    Returns:
        (n, 2) coordinates, and the share of the variance that the two axes show, NaN without any.
        The largest entry of each axis is positive, so that pictures are not mirrored on other
        machines.
    """
    if not len(rows):
        return np.zeros((0, 2)), math.nan
    centred = rows - rows.mean(axis=0)
    total = float((centred * centred).sum())
    if total < 1e-12:
        return np.zeros((len(rows), 2)), math.nan
    # Subspace iteration: a full decomposition takes minutes on a busy machine.
    n = min(_BLOCK, centred.shape[1])
    axes = np.random.default_rng(0).normal(size=(centred.shape[1], n))
    for _ in range(_ITERATIONS):
        axes, _ = np.linalg.qr(centred.T @ (centred @ axes))
    _, lengths, turn = np.linalg.svd(centred @ axes, full_matrices=False)
    axes = (axes @ turn.T)[:, :2]
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    at = np.zeros((len(rows), 2))
    at[:, : axes.shape[1]] = centred @ (axes * signs)
    return at, float((lengths[:2] ** 2).sum() / total)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
