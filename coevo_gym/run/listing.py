"""Tasks as rows for a listing."""

from __future__ import annotations

from typing import Any

from coevo_gym.benchmark import get_benchmark
from coevo_gym.run.folder import RunFolder
from coevo_gym.run.reader import RunReader, StoredRound
from coevo_gym.task import Task, parse_split


def native_rows(benchmark: str, split: str, subset: str | None) -> list[dict[str, Any]]:
    """Native tasks of a benchmark."""
    tasks = get_benchmark(benchmark).tasks(parse_split(split), subset)
    return [_row(task) for task in tasks]


def run_rows(folder: RunFolder, *, evolved: bool = False) -> list[dict[str, Any]]:
    """Tasks of a run's arms with the round, the signal and the parents they came from.

    Args:
        folder: the run.
        evolved: leave out the first task set (D_0).
    """
    reader = RunReader(folder.database)
    rounds, stored = reader.rounds(), reader.tasks()
    names = {task.id: task.name for task in stored}
    rows = []
    for applied in rounds:
        first = not applied.round.contexts and applied.step == 0
        if not (evolved and first):
            rows += [_evolved_row(task, applied, names) for task in applied.result.accepted]
    return rows


def _row(task: Task) -> dict[str, Any]:
    return {
        "name": task.name,
        "id": task.id,
        "split": str(task.split),
        "subset": task.subset,
        "instruction": task.instruction,
    }


def _evolved_row(task: Task, applied: StoredRound, names: dict[str, str]) -> dict[str, Any]:
    return {
        "name": task.name,
        "id": task.id,
        "arm": applied.arm,
        "round": applied.round.id,
        "signal": str(task.provenance.get("kind", "")),
        "parents": [names.get(parent, parent) for parent in task.parents],
        "instruction": task.instruction,
        "actions": list(task.solution),
    }
