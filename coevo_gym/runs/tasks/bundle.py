"""The files in an export of tasks: ``tasks.jsonl`` and ``tasks.parquet``."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from coevo_gym.core.benchmark import find_spec
from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.core.evolution import Verdict
from coevo_gym.core.task import Task
from coevo_gym.curricula.pool.task_pool import require_train_split
from coevo_gym.provision import install_hint
from coevo_gym.store.folder import RunFolder, write_atomic
from coevo_gym.store.reader import RunReader
from coevo_gym.store.rows import HOLD


class FileColumn(NamedTuple):
    """A column of the exported table.

    Attributes:
        name: name of the column.
        about: description for readers.
        repeated: True if each cell contains a list.
        number: True if the column contains integers; otherwise it contains text.
    """

    name: str
    about: str
    repeated: bool = False
    number: bool = False


COLUMNS: tuple[FileColumn, ...] = (
    FileColumn("id", "Hash of the task's content; identical tasks have the same id."),
    FileColumn("name", "Human-readable name."),
    FileColumn("benchmark", "The benchmark whose engine runs the task."),
    FileColumn("split", "Always train, because only training tasks are exported."),
    FileColumn("subset", "The benchmark's own name for the subset that contains the task."),
    FileColumn("scenario", "Scenario of the task; tasks of a scenario belong to the same split."),
    FileColumn("instruction", "The instruction that the agent receives."),
    FileColumn("origin", "native: part of the benchmark; evolved: found and verified by a run."),
    FileColumn("parents", "Ids of the tasks that the task evolved from.", repeated=True),
    FileColumn("signal", "The kind of weakness of an agent that led to the task."),
    FileColumn("round", "The round of evolution that added the task to a pool."),
    FileColumn("arms", "The arms of the run whose pools contain the task.", repeated=True),
    FileColumn("draft", "Id of the draft that the task was built from."),
    FileColumn("gates", "The gates that the task passed, some with their findings.", repeated=True),
    FileColumn("n_actions", "Number of actions in the reference solution.", number=True),
)
SOLUTION = FileColumn("solution", "Actions of the reference solution, in order.", repeated=True)


@dataclass(frozen=True)
class ExportedTask:
    """A training task with its provenance.

    Attributes:
        task: the task.
        round_id: the round that added the task to a pool; "" if it is native or not added yet.
        arms: the arms whose pools contain it.
        gates: the gates that the task passed, some with their findings.
    """

    task: Task
    round_id: str = ""
    arms: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()

    def to_row(self, *, with_solution: bool) -> dict[str, Any]:
        """Return the task's table row as a dict that maps column names to values."""
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


def tasks_of_run(folder: RunFolder, arm: str | None = None) -> list[ExportedTask]:
    """Return all tasks that a run's rounds found or that users released from review.

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
    held_verdicts = {draft.task.id: draft.verdict for draft in reader.tasks_on_hold()}
    exports: dict[str, ExportedTask] = {}
    for applied in rounds:
        verdicts = held_verdicts | {v.task_id: v for v in applied.result.verdicts if v.accepted}
        for task in applied.result.accepted:
            one = exports.get(task.id)
            if one is None:
                gates = _passed_gates(verdicts.get(task.id))
                exports[task.id] = ExportedTask(task, applied.round.id, (applied.arm,), gates)
            elif applied.arm not in one.arms:
                exports[task.id] = replace(one, arms=(*one.arms, applied.arm))
    for name in dict.fromkeys(applied.arm for applied in rounds):
        for task, verdict in reader.tasks_to_join(name):
            gates = _passed_gates(verdict or held_verdicts.get(task.id))
            exports.setdefault(task.id, ExportedTask(task, gates=gates))
    return _require_training_tasks(exports.values())


def wrap_native_tasks(tasks: Sequence[Task]) -> list[ExportedTask]:
    """Wrap a benchmark's own training tasks for export."""
    return _require_training_tasks([ExportedTask(task) for task in tasks])


def _require_training_tasks(tasks: Iterable[ExportedTask]) -> list[ExportedTask]:
    """Return the tasks as a list; raise an error if a task is not a training task."""
    items = list(tasks)
    for one in items:
        require_train_split(one.task, "export")
    return items


def _passed_gates(verdict: Verdict | None) -> tuple[str, ...]:
    if verdict is None:
        return ()
    lines = [f"{gate}: {remark}" if remark else gate for gate, remark in verdict.checks]
    released = [f"{HOLD}: released by a user"] if verdict.gate == HOLD else []
    return (*lines, *released)


def import_pyarrow() -> tuple[Any, Any]:
    """Import and return the modules needed to write Parquet.

    Raises:
        ImportError: if pyarrow is missing; the message says how to install it.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        advice = install_hint("export")
        raise ImportError(
            f"Writing a Parquet table requires pyarrow. {advice}, or skip the table with "
            "--no-parquet."
        ) from error
    return pyarrow, pyarrow.parquet


def parquet_bytes(columns: Sequence[FileColumn], rows: Sequence[dict[str, Any]]) -> bytes:
    """Encode a table as a Parquet file, with the descriptions of its columns.

    Returns:
        The file's bytes.

    Raises:
        ImportError: if pyarrow is missing.
    """
    arrow, parquet = import_pyarrow()
    fields = []
    for column in columns:
        kind = arrow.int64() if column.number else arrow.string()
        kind = arrow.list_(kind) if column.repeated else kind
        about = {"description": column.about}
        fields.append(arrow.field(column.name, kind, nullable=False, metadata=about))
    file = io.BytesIO()
    table = arrow.Table.from_pylist(list(rows), schema=arrow.schema(fields))
    parquet.write_table(table, file, compression="zstd")
    return file.getvalue()


TASKS, TABLE = "tasks.jsonl", "tasks.parquet"
UNSTATED_TERMS = "The terms are unknown. Ask the authors of the benchmark."
"""Terms for sharing the tasks of a benchmark that does not state any."""


class Export(NamedTuple):
    """The result of an export.

    Attributes:
        files: paths of the files.
        terms: terms for sharing the tasks, by benchmark.
    """

    files: tuple[Path, ...]
    terms: dict[str, str]


def write_bundle(
    folder: Path,
    name: str,
    tasks: Sequence[ExportedTask],
    *,
    parquet: bool = True,
    with_solutions: bool = False,
    overwrite: bool = False,
) -> Export:
    """Write tasks to a folder.

    ``tasks.jsonl`` contains complete tasks, with world, verifier and reference solution, for
    samplers and trainers. The Parquet table is for viewing and sharing, and has no verifiers.

    Args:
        folder: target folder; created if necessary.
        name: name of the run or benchmark, for messages.
        tasks: the tasks to write.
        parquet: True to write the Parquet table, which requires pyarrow.
        with_solutions: True to include reference solutions in the table.
        overwrite: True to replace an earlier export.

    Raises:
        ConfigError: if there are no tasks, or an export exists already.
        ImportError: if pyarrow is missing.
        StoreError: if a file cannot be written.
    """
    if not tasks:
        raise ConfigError(f"{name} has no tasks to export.")
    if parquet:
        import_pyarrow()
    there = [file for file in (TASKS, TABLE) if (folder / file).exists()]
    if there and not overwrite:
        raise ConfigError(
            f"{folder / there[0]} already exists. Choose another --out, or pass --overwrite."
        )
    lines = [one.task.to_json().encode() + b"\n" for one in tasks]
    files = {TASKS: b"".join(lines)}
    if parquet:
        columns = (*COLUMNS, SOLUTION) if with_solutions else COLUMNS
        rows = [one.to_row(with_solution=with_solutions) for one in tasks]
        files[TABLE] = parquet_bytes(columns, rows)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in set(there) - set(files):
            (folder / stale).unlink()
    except OSError as error:
        raise StoreError(f"Cannot write {folder}: {error.strerror}.") from error
    for file, data in files.items():
        write_atomic(folder / file, data)
    return Export(tuple(folder / file for file in files), _sharing_terms(tasks))


def _sharing_terms(tasks: Sequence[ExportedTask]) -> dict[str, str]:
    """Return the terms for sharing each benchmark's tasks, keyed by benchmark."""
    specs = {one.task.benchmark: find_spec(one.task.benchmark) for one in tasks}
    return {name: (spec.terms if spec else "") or UNSTATED_TERMS for name, spec in specs.items()}
