"""Export of tasks as a Parquet table."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from coevo_gym.export.rows import FileColumn
from coevo_gym.provision import extra_advice


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
