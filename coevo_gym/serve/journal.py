"""An SQLite file that stores a session's last snapshot and the calls made after it."""

from __future__ import annotations

import json
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from coevo_gym.core.errors import StoreError
from coevo_gym.core.task import canonical_json
from coevo_gym.store.folder import file_identity, raise_store_errors, transaction

FORMAT = 2
"""Version of the file format."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, body TEXT);
CREATE TABLE IF NOT EXISTS snapshot
    (one INTEGER PRIMARY KEY CHECK (one = 1), at REAL, body BLOB, checksum INTEGER);
CREATE TABLE IF NOT EXISTS calls
    (number INTEGER PRIMARY KEY, at REAL, what TEXT, body BLOB, checksum INTEGER);
"""


class JournalCall(NamedTuple):
    """A call that changed a session.

    Attributes:
        at: time of the call, in seconds on the session's clock.
        what: name of the call.
        body: arguments and answer of the call, as JSON.
    """

    at: float
    what: str
    body: Mapping[str, Any]


class Journal:
    """A session's calls in order, with the snapshot taken before the first call.

    A call survives the process once :meth:`add` has returned. Only one process at a time may have
    the file open. Every row has a checksum. If the file is deleted or replaced while it is open,
    the next change fails, and a copy of the file is made.

    Args:
        path: path of the file; created if missing.
        about: settings of the session. They are stored in a new file and must equal those in an
            existing one.

    Raises:
        StoreError: if the file cannot be used, is damaged, belongs to another session, or is in
            use.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._since, self._synced = 0, True
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._raise_as_store_error():
            self._db = sqlite3.connect(
                path, timeout=0, isolation_level=None, check_same_thread=False
            )
            self._db.text_factory = _decode_text
            try:
                # Keep the file locked while it is open, because two servers do not share memory.
                self._db.executescript("PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL;")
                self._db.executescript(
                    f"PRAGMA synchronous=FULL; BEGIN EXCLUSIVE; {_SCHEMA} COMMIT;"
                )
                self._check_or_initialise(about)
                self.n_calls = self._check_and_count_calls()
                files = (path, path.with_name(f"{path.name}-wal"))
                self._files = {file: file_identity(file) for file in files}
            except BaseException as error:
                self._db.close()
                if "locked" in str(error):
                    raise StoreError(
                        f"{path} is in use by another server. Stop that server, or pass another "
                        "--db."
                    ) from error
                raise

    def _check_or_initialise(self, about: Mapping[str, Any]) -> None:
        (problem,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        if problem != "ok":
            raise self._damage_error(problem)
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        known = dict(self._db.execute("SELECT name, body FROM about"))
        if version not in (0, FORMAT) or (version == 0 and known):
            raise StoreError(
                f"{self.path} has format {version}, but this version of coevo_gym reads format "
                f"{FORMAT}. Pass another --db, or use the version that created it."
            )
        mine = {name: canonical_json(value) for name, value in about.items()}
        if version and known != mine:
            other = [n for n in sorted({*known, *mine}) if known.get(n) != mine.get(n)]
            text = ", ".join(f"{n}={known.get(n)} (now {mine.get(n)})" for n in other)
            raise StoreError(
                f"{self.path} belongs to a session with {text}. Use the same settings, or "
                "pass another --db."
            )
        if version == 0:
            with transaction(self._db):
                self._db.executemany("INSERT INTO about VALUES (?, ?)", mine.items())
                self._db.execute(f"PRAGMA user_version={FORMAT}")

    def _check_and_count_calls(self) -> int:
        """Check that the call numbers have no gaps, and return the number of calls."""
        n, last = self._db.execute("SELECT count(*), max(number) FROM calls").fetchone()
        if n != (last or 0):
            raise self._damage_error(f"only {n} of {last} calls are left")
        return int(n)

    def read_snapshot(self) -> tuple[float, dict[str, Any]] | None:
        """Return the time and state of the latest snapshot, or None if there is no snapshot.

        Raises:
            StoreError: if the snapshot is damaged.
        """
        with self._lock, self._raise_as_store_error():
            row = self._db.execute("SELECT one, at, '', body, checksum FROM snapshot").fetchone()
            if row is None:
                if self.n_calls:
                    raise self._damage_error("its snapshot is missing")
                return None
            at, _, state = self._check_and_decode_row("the snapshot", *row)
            return at, state

    def read_calls(self) -> Iterator[JournalCall]:
        """Yield the calls made since the snapshot, in order.

        Raises:
            StoreError: if the next call is damaged.
        """
        for number in range(1, self.n_calls + 1):
            with self._lock, self._raise_as_store_error():
                query = "SELECT number, at, what, body, checksum FROM calls WHERE number = ?"
                row = self._db.execute(query, (number,)).fetchone()
                call = JournalCall(
                    *self._check_and_decode_row(f"call {number}", *(row or [None] * 5))
                )
            self._since += len(row[3])
            yield call

    def count_calls(self, what: str, first: int) -> int:
        """Return the number of calls named ``what`` since call number ``first``."""
        query = "SELECT count(*) FROM calls WHERE number >= ? AND what = ?"
        with self._lock, self._raise_as_store_error():
            return int(self._db.execute(query, (first, what)).fetchone()[0])

    @property
    def bytes_since_snapshot(self) -> int:
        """Number of bytes added to the journal since the latest snapshot."""
        return self._since

    def add(self, calls: Sequence[JournalCall], *, synced: bool = True) -> None:
        """Store calls in a single transaction.

        Args:
            calls: calls to store, in order.
            synced: True to sync them to disk before returning. Otherwise they survive a crash of
                this process, but not a power failure before the next synced calls.
        """
        rows = []
        for number, call in enumerate(calls, self.n_calls + 1):
            row = (number, call.at, call.what, _compress_json(call.body))
            rows.append((*row, _checksum(*row)))
        with self._lock, self._raise_as_store_error():
            if synced is not self._synced:
                self._db.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
                self._synced = synced
            with transaction(self._db):
                self._db.executemany("INSERT INTO calls VALUES (?, ?, ?, ?, ?)", rows)
            self.n_calls += len(rows)
            self._since += sum(len(row[3]) for row in rows)
        self._check_in_place()

    def replace_calls_with_snapshot(self, at: float, state: Mapping[str, Any]) -> int:
        """Store a snapshot of a state, and delete all recorded calls. Return its size in bytes."""
        body = _compress_json(state)
        row = (1, at, body, _checksum(1, at, "", body))
        with self._lock, self._raise_as_store_error():
            with transaction(self._db):
                self._db.execute("INSERT OR REPLACE INTO snapshot VALUES (?, ?, ?, ?)", row)
                self._db.execute("DELETE FROM calls")
            self.n_calls = self._since = 0
        self._check_in_place()
        return len(body)

    def copy(self) -> Path:
        """Copy the file to a new file beside it and return the new path."""
        names = (self.path.with_name(f"{self.path.name}.copy-{n}") for n in count(1))
        path = next(name for name in names if not name.exists())
        with self._lock, self._raise_as_store_error(), closing(sqlite3.connect(path)) as other:
            self._db.backup(other)
        return path

    def close(self) -> None:
        """Close the file; may be called repeatedly."""
        with self._lock:
            self._db.close()

    def _check_in_place(self) -> None:
        """Check that the file is still in place, so that the next process will find it.

        Raises:
            StoreError: if the file or its log is no longer the one that was opened.
        """
        if all(file_identity(file) == known for file, known in self._files.items()):
            return
        rest = "If it was moved, move it back."
        if self.path.parent.is_dir():
            copy = self.copy()
            rest = f"Its content is in {copy}: start the server with --db {copy}."
        raise StoreError(f"{self.path} was deleted, moved or replaced while in use. {rest}")

    @contextmanager
    def _raise_as_store_error(self) -> Iterator[None]:
        """Convert any error caused by an unusable or damaged file to a StoreError."""
        with raise_store_errors(self.path):
            try:
                yield
            except sqlite3.DatabaseError as error:
                broken = type(error) is sqlite3.DatabaseError  # not one of its subclasses
                if broken or "malformed" in str(error):
                    raise self._damage_error(error) from error
                raise
            except (ValueError, TypeError, ArithmeticError) as error:
                raise self._damage_error(error) from error

    def _check_and_decode_row(
        self, name: str, number: Any, at: Any, what: Any, body: Any, checksum: Any
    ) -> tuple[float, str, Any]:
        """Return a row's time, name and content after verifying its checksum."""
        if not isinstance(body, bytes) or checksum != _checksum(number, at, what, body):
            raise self._damage_error(f"{name} does not match its checksum")
        return at, what, json.loads(zlib.decompress(body))

    def _damage_error(self, why: object) -> StoreError:
        return StoreError(
            f"{self.path} is damaged: {why}. Restore a copy of it, or pass another --db."
        )


def _decode_text(data: bytes) -> str:
    """Decode a text column. The checksum detects corrupted bytes later."""
    return data.decode(errors="replace")


def _checksum(number: Any, at: Any, what: Any, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(repr((number, at, what)).encode()))


def _compress_json(value: Any) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 1)
