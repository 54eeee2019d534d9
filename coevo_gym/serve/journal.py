"""What a served session has done since its last snapshot, in one SQLite file."""

from __future__ import annotations

import json
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coevo_gym.core.errors import StoreError
from coevo_gym.core.task import canonical_json
from coevo_gym.store.folder import storing

FORMAT = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, body TEXT);
CREATE TABLE IF NOT EXISTS snapshot (one INTEGER PRIMARY KEY CHECK (one = 1), at REAL, body BLOB);
CREATE TABLE IF NOT EXISTS calls (number INTEGER PRIMARY KEY, at REAL, what TEXT, body BLOB);
"""


class Call(NamedTuple):
    """One change of a session.

    Attributes:
        at: when, in seconds of the session's clock.
        what: its name.
        body: its arguments, and what it answered, as JSON.
    """

    at: float
    what: str
    body: Mapping[str, Any]


class Journal:
    """The calls of a session in order, and a snapshot that the first of them follows.

    A call that :meth:`add` has returned from outlives its process. One process at a time may have
    the file open.

    Args:
        path: the file; made if it is not there.
        about: what the session was made with. It is kept in a new file, and must be equal in an
            old one.

    Raises:
        StoreError: if the file cannot be used, is of another session, or is in use.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._since, self._synced = 0, True
        path.parent.mkdir(parents=True, exist_ok=True)
        with storing(path):
            self._db = sqlite3.connect(
                path, timeout=0, isolation_level=None, check_same_thread=False
            )
            try:
                # Whoever has the file open keeps it locked: two servers would share no memory.
                self._db.executescript("PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL;")
                self._db.executescript(
                    f"PRAGMA synchronous=FULL; BEGIN EXCLUSIVE; {_SCHEMA} COMMIT;"
                )
                self._check(about)
            except BaseException as error:
                self._db.close()
                if "locked" in str(error):
                    raise StoreError(
                        f"{path} is in use: another server has it open. Stop that one first, or "
                        "pass another --db."
                    ) from error
                raise

    def _check(self, about: Mapping[str, Any]) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        known = dict(self._db.execute("SELECT name, body FROM about"))
        if version not in (0, FORMAT) or (version == 0 and known):
            raise StoreError(
                f"{self.path} has format {version}, and this version of coevo_gym reads "
                f"{FORMAT}. Pass another --db, or use the version that made it."
            )
        mine = {name: canonical_json(value) for name, value in about.items()}
        if version == 0:
            self._db.executemany("INSERT INTO about VALUES (?, ?)", mine.items())
            self._db.execute(f"PRAGMA user_version={FORMAT}")
        elif known != mine:
            other = [n for n in sorted({*known, *mine}) if known.get(n) != mine.get(n)]
            said = ", ".join(f"{n}={known.get(n)} (now {mine.get(n)})" for n in other)
            raise StoreError(
                f"{self.path} is of a session that was made with {said}. Go on with the same "
                "settings, or pass another --db."
            )

    def snapshot(self) -> tuple[float, dict[str, Any]] | None:
        """When the latest snapshot was made, and the state in it; None if there is none."""
        with self._lock, storing(self.path):
            row = self._db.execute("SELECT at, body FROM snapshot").fetchone()
        return None if row is None else (row[0], _unpack(row[1]))

    def calls(self) -> Iterator[Call]:
        """What happened since then, in order."""
        with self._lock, storing(self.path):
            numbers = [row[0] for row in self._db.execute("SELECT number FROM calls ORDER BY 1")]
        for number in numbers:
            with self._lock, storing(self.path):
                query = "SELECT at, what, body FROM calls WHERE number = ?"
                at, what, body = self._db.execute(query, (number,)).fetchone()
            self._since += len(body)
            yield Call(at, what, _unpack(body))

    @property
    def bytes_since_snapshot(self) -> int:
        """How much has been added since the latest snapshot."""
        return self._since

    def add(self, calls: Sequence[Call], *, synced: bool = True) -> None:
        """Keep calls, all or none.

        Args:
            calls: what happened, in order.
            synced: whether they are on disk when it returns. Otherwise they outlive this process,
                but not a power cut that comes before the next ones that are.
        """
        rows = [(call.at, call.what, _pack(call.body)) for call in calls]
        with self._lock, storing(self.path):
            if synced is not self._synced:
                self._db.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
                self._synced = synced
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany("INSERT INTO calls VALUES (NULL, ?, ?, ?)", rows)
                self._db.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
            self._since += sum(len(row[2]) for row in rows)

    def put_snapshot(self, at: float, state: Mapping[str, Any]) -> int:
        """Keep a state in place of all calls so far; says its size in bytes."""
        body = _pack(state)
        with self._lock, storing(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.execute("INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?)", (at, body))
                self._db.execute("DELETE FROM calls")
                self._db.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
            self._since = 0
        return len(body)

    def close(self) -> None:
        """Close the file; twice is fine."""
        with self._lock:
            self._db.close()

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")


def _pack(value: Any) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 1)


def _unpack(body: bytes) -> Any:
    return json.loads(zlib.decompress(body))
