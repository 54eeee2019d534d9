"""The folder of an export: ``tasks.jsonl``, ``tasks.parquet`` and ``croissant.json``."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

from coevo_gym import __version__
from coevo_gym.core.benchmark import find_spec
from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.provision import extra_advice
from coevo_gym.store.folder import write_atomic
from coevo_gym.view.files.rows import COLUMNS, SOLUTION, ExportedTask, FileColumn


def need_pyarrow() -> tuple[Any, Any]:
    """Import and return the modules that write Parquet.

    Raises:
        ImportError: if pyarrow is missing; the message says how to install it.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            f"A Parquet table needs pyarrow. {extra_advice('export')}, or skip the table "
            "with --no-parquet."
        ) from error
    return pyarrow, pyarrow.parquet


def parquet_bytes(columns: Sequence[FileColumn], rows: Sequence[dict[str, Any]]) -> bytes:
    """Return a table as the bytes of a Parquet file.

    Args:
        columns: columns of the table.
        rows: rows of the table, by column name.

    Raises:
        ImportError: if pyarrow is missing.
    """
    arrow, parquet = need_pyarrow()
    fields = []
    for column in columns:
        kind = arrow.int64() if column.number else arrow.string()
        kind = arrow.list_(kind) if column.repeated else kind
        fields.append(arrow.field(column.name, kind, nullable=False))
    file = io.BytesIO()
    table = arrow.Table.from_pylist(list(rows), schema=arrow.schema(fields))
    parquet.write_table(table, file, compression="zstd")
    return file.getvalue()


CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
MEDIA_TYPES = {".jsonl": "application/jsonlines", ".parquet": "application/x-parquet"}
_OF_CROISSANT = (
    "citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty",
    "fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField",
    "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate", "separator",
    "source", "subField", "transform",
)  # fmt: skip
_CONTEXT: Mapping[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _OF_CROISSANT},
}
"""Meaning of the terms below, from the first appendix of the format's specification."""


def croissant(
    name: str,
    description: str,
    *,
    terms: str,
    made_by: str,
    published: date,
    files: Mapping[str, bytes],
    tables: Mapping[str, Sequence[FileColumn]],
) -> dict[str, Any]:
    """Return the metadata of a data set.

    Args:
        name: name of the data set.
        description: description for readers.
        terms: terms for sharing the data set.
        made_by: creator of the data set.
        published: publication date.
        files: contents of the data files, by name.
        tables: columns to describe, by file name.
    """
    return {
        "@context": dict(_CONTEXT),
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": name,
        "description": description,
        "license": {"@type": "sc:CreativeWork", "name": "Terms", "description": terms},
        "creator": {"@type": "sc:Organization", "name": made_by},
        "datePublished": published.isoformat(),
        "url": "croissant.json",
        "version": "1.0.0",
        "distribution": [_file(file, data) for file, data in files.items()],
        "recordSet": [_records(file, columns) for file, columns in tables.items()],
    }


def _file(name: str, data: bytes) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "contentUrl": name,
        "contentSize": f"{len(data)} B",
        "encodingFormat": MEDIA_TYPES[name[name.rindex(".") :]],
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def _records(file: str, columns: Sequence[FileColumn]) -> dict[str, Any]:
    """Return the description of a file with one record per task."""
    id = f"rows-of-{file.replace('.', '-')}"
    has_id = any(column.name == "id" for column in columns)
    return {
        "@type": "cr:RecordSet",
        "@id": id,
        "name": id,
        "description": f"The tasks, as {file} has them.",
        **({"key": {"@id": f"{id}/id"}} if has_id else {}),
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{id}/{column.name}",
                "name": column.name,
                "description": column.about,
                "dataType": "sc:Integer" if column.number else "sc:Text",
                **({"repeated": True} if column.repeated else {}),
                "source": {
                    "fileObject": {"@id": file},
                    "extract": {"column": column.name},
                },
            }
            for column in columns
        ],
    }


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
