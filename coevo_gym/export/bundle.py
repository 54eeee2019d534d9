"""The folder of an export: ``tasks.jsonl``, ``tasks.parquet`` and ``croissant.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import NamedTuple

from coevo_gym import __version__
from coevo_gym.core.benchmark import find_spec
from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.export.croissant import croissant
from coevo_gym.export.parquet import need_pyarrow, parquet_bytes
from coevo_gym.export.rows import COLUMNS, SOLUTION, ExportedTask, FileColumn
from coevo_gym.store.folder import write_atomic

TASKS, TABLE, METADATA = "tasks.jsonl", "tasks.parquet", "croissant.json"
_UNSTATED = "Nothing is known about the terms: ask whoever made the benchmark."
_IN_JSONL = frozenset(
    {"name", "benchmark", "split", "subset", "scenario", "instruction", "origin", "parents"}
)


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
    today: date | None = None,
) -> Export:
    """Write tasks to a folder.

    ``tasks.jsonl`` contains complete tasks, with world, verifier and reference, for samplers and
    trainers. The Parquet table is for viewing and sharing, and contains no verifiers.

    Args:
        folder: target folder; created if necessary.
        name: name of the data set, for its description.
        tasks: the tasks to write.
        parquet: True to write the Parquet table, which requires pyarrow.
        with_solutions: True to include reference solutions in the table.
        overwrite: True to replace an earlier export.
        today: publication date; None for today.

    Raises:
        ConfigError: if there are no tasks, or an export exists already.
        ImportError: if pyarrow is missing.
        StoreError: if a file cannot be written.
    """
    if not tasks:
        raise ConfigError(f"{name} has no tasks to export.")
    if parquet:
        need_pyarrow()
    there = [file for file in (TASKS, TABLE, METADATA) if (folder / file).exists()]
    if there and not overwrite:
        raise ConfigError(
            f"{folder / there[0]} already exists. Choose another --out, or pass --overwrite."
        )
    lines = [one.task.to_json().encode() + b"\n" for one in tasks]
    files, tables = {TASKS: b"".join(lines)}, dict[str, tuple[FileColumn, ...]]()
    if parquet:
        columns = (*COLUMNS, SOLUTION) if with_solutions else COLUMNS
        rows = [one.cells(with_solution=with_solutions) for one in tasks]
        files[TABLE], tables[TABLE] = parquet_bytes(columns, rows), columns
    tables[TASKS] = tuple(column for column in COLUMNS if column.name in _IN_JSONL)
    terms = _terms(tasks)
    metadata = croissant(
        name,
        _description(name, tasks),
        terms=" ".join(f"{benchmark}: {text}" for benchmark, text in terms.items()),
        made_by=f"coevo_gym {__version__}",
        published=today or datetime.now(UTC).date(),
        files=files,
        tables=tables,
    )
    files[METADATA] = (json.dumps(metadata, indent=2, ensure_ascii=False) + "\n").encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in set(there) - set(files):
            (folder / stale).unlink()
    except OSError as error:
        raise StoreError(f"Cannot write {folder}: {error.strerror}.") from error
    for file, data in files.items():
        write_atomic(folder / file, data)
    return Export(tuple(folder / file for file in files), terms)


def _terms(tasks: Sequence[ExportedTask]) -> dict[str, str]:
    """Return each benchmark's terms for sharing its tasks."""
    specs = {one.task.benchmark: find_spec(one.task.benchmark) for one in tasks}
    return {name: (spec.terms if spec else "") or _UNSTATED for name, spec in specs.items()}


def _description(name: str, tasks: Sequence[ExportedTask]) -> str:
    evolved = sum(one.task.origin == "evolved" for one in tasks)
    benchmarks = " and ".join(dict.fromkeys(one.task.benchmark for one in tasks))
    return (
        f"{len(tasks)} training tasks for language-model agents on {benchmarks}, from {name}. "
        f"{evolved} of them evolved: each was found where an agent was weak, and proven by running "
        f"its reference solution in the benchmark's own engine. {TASKS} holds each task whole, "
        "with the state that starts the engine, what judges an episode, and the reference. There "
        "is no validation or test task among them."
    )
