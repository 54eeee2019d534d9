"""A run's database is read without a trace, also where nothing may be written."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coevo_gym.core.errors import StoreError
from coevo_gym.store.database import RunStore
from coevo_gym.store.reader import RunReader
from tests.runs.test_store import RESULT, ROUND, TASKS

NOBODY = 65534


@contextmanager
def unprivileged() -> Iterator[None]:
    """A scope in which permissions count, also for root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody may look into, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="coevo-reader-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


def fill(folder: Path) -> RunStore:
    store = RunStore(folder / "run.db")
    store.add_tasks(TASKS[:3])
    store.add_round("a", 1, 99, 12, ROUND, RESULT)
    return store


def files(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_reading_a_run_changes_no_files(folder: Path) -> None:
    fill(folder).close()
    before = files(folder)
    reader = RunReader(folder / "run.db")
    assert len(reader.tasks(origin="evolved")) == 1
    assert reader.rounds()[0].result == RESULT
    assert files(folder) == before == {"run.db": before["run.db"]}


def test_a_run_in_a_read_only_folder_can_be_read(folder: Path) -> None:
    fill(folder).close()
    folder.chmod(0o555)
    with unprivileged():
        assert not os.access(folder, os.W_OK, effective_ids=True)
        assert RunReader(folder / "run.db").rounds()[0].result == RESULT


def test_a_reader_sees_what_an_unfinished_run_has_written(folder: Path) -> None:
    store, reader = fill(folder), RunReader(folder / "run.db")
    assert (folder / "run.db-wal").exists()
    assert len(reader.rounds()) == 1
    store.add_tasks(TASKS[:9])
    assert len(reader.tasks(origin="native")) == 9
    store.close()
    assert len(reader.tasks(origin="native")) == 9


def test_a_reader_cannot_write(folder: Path) -> None:
    store = fill(folder)
    for _ in range(2):  # while the run writes, and afterwards
        with pytest.raises(StoreError, match="readonly"):
            RunReader(folder / "run.db")._rows("DELETE FROM tasks")
        store.close()


def test_a_missing_database_raises_and_is_not_created(folder: Path) -> None:
    with pytest.raises(StoreError, match=r"run\.db, .* is missing\. .* restore the file"):
        RunReader(folder / "run.db")
    assert not files(folder)


def test_a_database_with_another_schema_version_is_refused(folder: Path) -> None:
    with sqlite3.connect(folder / "run.db") as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(StoreError, match="has schema version 99"):
        RunReader(folder / "run.db")
