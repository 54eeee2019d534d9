"""Rows of an export: tasks with their provenance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Verdict
from coevo_gym.core.task import Task
from coevo_gym.curricula.pool.pool import require_train
from coevo_gym.store.folder import RunFolder
from coevo_gym.store.reader import HOLD, RunReader


class FileColumn(NamedTuple):
    """A column of the table.

    Attributes:
        name: name of the column.
        about: description for readers.
        repeated: True if each cell contains a list.
        number: True if the column contains integers; otherwise it contains texts.
    """

    name: str
    about: str
    repeated: bool = False
    number: bool = False


COLUMNS: tuple[FileColumn, ...] = (
    FileColumn("id", "Hash of what the task is; equal for equal tasks."),
    FileColumn("name", "Name for people."),
    FileColumn("benchmark", "The benchmark whose engine plays it."),
    FileColumn("split", "Always train: no other tasks are exported."),
    FileColumn("subset", "The benchmark's own name for a part of its tasks."),
    FileColumn("scenario", "The unit that lies as a whole on one side of a split."),
    FileColumn("instruction", "What the agent is asked to do."),
    FileColumn("origin", "native: came with the benchmark; evolved: found by a run and proven."),
    FileColumn("parents", "Ids of the tasks that it grew from.", repeated=True),
    FileColumn("signal", "The weakness of an agent that led to it."),
    FileColumn("round", "The round of evolution that brought it into a pool."),
    FileColumn("arms", "The arms of the run whose pools hold it.", repeated=True),
    FileColumn("draft", "Id of the draft that it was built from."),
    FileColumn("gates", "The gates that it passed, some with what they said.", repeated=True),
    FileColumn("n_actions", "Length of its reference solution.", number=True),
)
SOLUTION = FileColumn("solution", "Actions of its reference solution, in order.", repeated=True)


@dataclass(frozen=True)
class ExportedTask:
    """A training task with its provenance.

    Attributes:
        task: the task.
        round_id: the round that added it to a pool; "" if it is native or waits for a round.
        arms: the arms whose pools contain it.
        gates: the gates that it passed, some with their findings.
    """

    task: Task
    round_id: str = ""
    arms: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()

    def cells(self, *, with_solution: bool) -> dict[str, Any]:
        """Return the row of the table, by column name."""
        task = self.task
        row: dict[str, Any] = {
            "id": task.id,
            "name": task.name,
            "benchmark": task.benchmark,
            "split": str(task.split),
            "subset": task.subset,
            "scenario": task.scenario,
            "instruction": task.instruction,
            "origin": task.origin,
            "parents": list(task.parents),
            "signal": str(task.provenance.get("kind", "")),
            "round": self.round_id,
            "arms": list(self.arms),
            "draft": str(task.provenance.get("draft", "")),
            "gates": list(self.gates),
            "n_actions": len(task.solution),
        }
        return row | ({"solution": list(task.solution)} if with_solution else {})


def of_run(folder: RunFolder, arm: str | None = None) -> list[ExportedTask]:
    """Return the distinct tasks that a run's rounds found or that users released, in order.

    Args:
        folder: the run.
        arm: include only tasks found by this arm's rounds or waiting to join its pool.

    Raises:
        ConfigError: if the run has no such arm.
    """
    reader = RunReader(folder.database)
    rounds = reader.rounds(arm)
    if arm is not None and not rounds:
        arms = dict.fromkeys(applied.arm for applied in reader.rounds())
        raise ConfigError(
            f"{folder.path.name} has no rounds for the arm {arm!r}. Choose one of: "
            f"{', '.join(arms)}."
        )
    held = {found.task.id: found.verdict for found in reader.held()}
    found: dict[str, ExportedTask] = {}
    for applied in rounds:
        verdicts = held | {v.task_id: v for v in applied.result.verdicts if v.accepted}
        for task in applied.result.accepted:
            one = found.get(task.id)
            if one is None:
                gates = _passed(verdicts.get(task.id))
                found[task.id] = ExportedTask(task, applied.round.id, (applied.arm,), gates)
            elif applied.arm not in one.arms:
                found[task.id] = replace(one, arms=(*one.arms, applied.arm))
    for name in dict.fromkeys(applied.arm for applied in rounds):
        for task, verdict in reader.joining(name):
            gates = _passed(verdict or held.get(task.id))
            found.setdefault(task.id, ExportedTask(task, gates=gates))
    return _training(found.values())


def of_benchmark(tasks: Sequence[Task]) -> list[ExportedTask]:
    """Return native tasks as rows of an export."""
    return _training([ExportedTask(task) for task in tasks])


def _training(tasks: Iterable[ExportedTask]) -> list[ExportedTask]:
    """Return the tasks as a list; raise an error if one is not a training task."""
    found = list(tasks)
    for one in found:
        require_train(one.task, "export")
    return found


def _passed(verdict: Verdict | None) -> tuple[str, ...]:
    if verdict is None:
        return ()
    told = [f"{gate}: {said}" if said else gate for gate, said in verdict.checks]
    released = [f"{HOLD}: released by a person"] if verdict.gate == HOLD else []
    return (*told, *released)
