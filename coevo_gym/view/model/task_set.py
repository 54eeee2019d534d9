"""The task sets of a run's arms: diversity, and similarity to the held-out tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from coevo_gym.core.errors import CoevoError
from coevo_gym.core.waiting import only_looking
from coevo_gym.curricula.metrics import max_similarity
from coevo_gym.curricula.pool.embed import HashingEmbedder
from coevo_gym.curricula.pool.growing import diversity
from coevo_gym.runs.assembly import Assembly
from coevo_gym.view.model.measures import FIRST
from coevo_gym.view.shapes.measures import ArmTaskSet, Similarity, TaskSet
from coevo_gym.view.shelf import ShownRun


class AskedTasks(NamedTuple):
    """A task's id and instruction."""

    id: str
    text: str


def task_set(run: ShownRun) -> TaskSet:
    """Return the task sets of the arms that evolved.

    Raises:
        Damaged: if the run cannot be read.
    """
    if not run.folder.database.is_file():
        return TaskSet(arms=(), similarity=())

    def compare() -> TaskSet:
        arms = _found_by_arm(run)
        return _compared(arms, _held_out(run) if arms else ())

    found: TaskSet = run.kept("task set", compare)
    return found


def _found_by_arm(run: ShownRun) -> dict[str, list[list[AskedTasks]]]:
    """Return the tasks of each arm that evolved: the first task set, then those of each round."""
    texts = run.reader.instructions()
    rounds = "SELECT arm, id FROM rounds ORDER BY number"
    found: dict[str, dict[str, list[AskedTasks]]] = {}
    for arm, round_id in run.index.rows(rounds):
        found.setdefault(arm, {})[round_id] = []
    tasks = "SELECT DISTINCT arm, round_id, task_id FROM lineage"
    for arm, round_id, id in run.index.rows(tasks):
        if id in texts and round_id in found.get(arm, {}):
            found[arm][round_id].append(AskedTasks(id, texts[id]))
    sets = {arm: list(of.values()) for arm, of in found.items()}
    return {arm: of for arm, of in sets.items() if len(of) > 1}


def _held_out(run: ShownRun) -> Sequence[AskedTasks]:
    """Return the tasks that arms are compared on; none if the benchmark is not installed."""
    config = run.config

    def read() -> tuple[AskedTasks, ...]:
        try:
            with only_looking():
                tasks = Assembly(config).held_out_tasks
        except CoevoError:
            return ()
        return tuple(AskedTasks(task.id, task.instruction) for task in tasks)

    found: tuple[AskedTasks, ...] = run.kept("held-out instructions", read, until=config)
    return found


def _compared(
    arms: Mapping[str, list[list[AskedTasks]]], held_out: Sequence[AskedTasks]
) -> TaskSet:
    return TaskSet(
        arms=tuple(_arm(arm, sets) for arm, sets in arms.items()),
        similarity=tuple(_similarity(arms, [text for _, text in held_out])),
    )


def _arm(arm: str, sets: Sequence[Sequence[AskedTasks]]) -> ArmTaskSet:
    found = diversity([[task.text for task in tasks] for tasks in sets])
    return ArmTaskSet(
        arm=arm,
        self_similarity=tuple(_known(one.self_similarity) for one in found),
        distance=tuple(_known(one.distance) for one in found),
    )


def _similarity(
    arms: Mapping[str, Sequence[Sequence[AskedTasks]]], held_out: Sequence[str]
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


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
