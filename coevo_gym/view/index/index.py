"""The index of one run, created on first use and updated while the run trains.

The index is stored in the user's cache. The run's own database is only read, in short transactions
that do not block writers. If a run was rewound or replaced, its index is rebuilt.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from coevo_gym.core.errors import StoreError
from coevo_gym.store.folder import RunFolder, storing
from coevo_gym.store.reader import RunReader
from coevo_gym.view.index import filling, schema
from coevo_gym.view.query import fold
from coevo_gym.view.rows import brief

Stamps = tuple[tuple[int, int, int], ...]


def stamps(*files: Path) -> Stamps:
    """Return each file's modification time, size and inode, to detect changes."""
    found = []
    for file in files:
        try:
            stat = file.stat()
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except OSError:
            found.append((-1, -1, -1))
    return tuple(found)


class Index:
    """An index for querying a run's episodes, groups, tasks and drafts.

    Thread-safe; several processes may share the file.

    Args:
        run: the run.
        file: file of the index; None for the default location in the user's cache.

    Attributes:
        revision: a counter that increases with every update; -1 before the first one.
    """

    def __init__(self, run: RunFolder, file: Path | None = None) -> None:
        self.run, self.file = run, file or schema.index_file(run.path)
        self.revision = -1
        self._lock = threading.Lock()
        self._seen: Stamps | None = None
        self._opened = threading.local()
        self._files = 0  # number of damaged index files removed so far

    def refresh(self) -> int:
        """Add all new data of the run to the index.

        Returns:
            The revision.

        Raises:
            StoreError: if the run's database is damaged or has an unsupported version.
        """
        with self._lock:
            stamp = self._stamp()
            if stamp != self._seen:
                self.revision = self._with_file(self._take_in)
                self._seen = stamp
            return self.revision

    def read_on(self, most: int = 500) -> bool:
        """Add the actions of the next batch of episodes to the search index.

        Returns:
            True if more episodes remain to be read.

        Raises:
            StoreError: as in :meth:`refresh`.
        """
        self.refresh()
        with self._lock:
            return self.run.database.is_file() and self._with_file(
                lambda db: filling.read_bodies(db, most)
            )

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a query on the index and return its rows."""
        with storing(self.file):
            return self._mine().execute(query, values).fetchall()

    @property
    def read(self) -> float:
        """Return the fraction of stored episodes whose actions are searchable."""
        ((read, end),) = self.rows(
            "SELECT coalesce((SELECT value FROM meta WHERE key = 'read'), 0), "
            "coalesce((SELECT max(number) FROM trajectories), 0)"
        )
        return min(1.0, int(read) / end) if end else 1.0

    def _take_in(self, db: sqlite3.Connection) -> int:
        origin = self._origin()
        if filling.get(db, "origin") != origin or not filling.is_of(db):
            revision = max(self.revision, int(filling.get(db, "revision") or 0))
            filling.forget(db)
            filling.put(db, "path", str(self.run.path.resolve()))
            filling.put(db, "origin", origin)
            filling.put(db, "revision", revision + 1)
        filling.take_in(db)
        return int(filling.get(db, "revision") or 0)

    def _with_file(self, work: Any) -> Any:
        """Run a function in one transaction. Replace the index file if it is damaged."""
        if not self.run.database.is_file():
            return self._empty()
        RunReader(self.run.database)  # raises an error if the run itself is damaged
        try:
            return self._in_transaction(work)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
                with storing(self.run.database):
                    raise
        schema.remove(self.file)
        self._files += 1
        with storing(self.run.database):  # with a new index, an error means that the run is damaged
            return self._in_transaction(work)

    def _in_transaction(self, work: Any) -> Any:
        with self._attached() as db:
            # Only the index is locked for writing; the attached database is opened read-only.
            db.execute("BEGIN")
            try:
                filling.put(db, "busy", 1)
                done = work(db)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            return done

    @contextmanager
    def _attached(self) -> Iterator[sqlite3.Connection]:
        database = self.run.database
        # As in `RunReader`: a database without a writer has no log file.
        written = database.with_name(f"{database.name}-wal").exists()
        how = "mode=ro" if written else "mode=ro&immutable=1"
        with closing(self._open()) as db:
            db.execute("ATTACH ? AS run", (f"{database.absolute().as_uri()}?{how}",))
            yield db

    def _mine(self) -> sqlite3.Connection:
        """Return this thread's connection to the index file."""
        known = getattr(self._opened, "connection", None)
        if known is None or known[0] != self._files or not self.file.exists():
            known = self._opened.connection = (self._files, self._open())
        db: sqlite3.Connection = known[1]
        return db

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self.file.absolute().as_uri(), uri=True, timeout=30, isolation_level=None
        )
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=OFF")  # lost data is rebuilt
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, schema.VERSION):
                db.close()
                schema.remove(self.file)
                return self._open()
            if version == 0:
                db.executescript(schema.TABLES)
                db.execute(f"PRAGMA user_version={schema.VERSION}")
            db.create_function("fold", 1, fold, deterministic=True)
            db.create_function("brief", 1, brief, deterministic=True)
        except BaseException:
            db.close()
            raise
        return db

    def _empty(self) -> int:
        """Clear the index of a run that has no database. Return the index's revision."""
        with storing(self.file), closing(self._open()) as db:
            if filling.get(db, "marks") is not None:
                filling.forget(db)
                filling.put(db, "revision", self.revision + 1)
            return int(filling.get(db, "revision") or 0)

    def _origin(self) -> str:
        """Return the run's fingerprint, a hash of its manifest."""
        try:
            manifest = self.run.manifest.read_bytes()
        except OSError as error:
            raise StoreError(f"Cannot read {self.run.manifest}: {error.strerror}.") from error
        return hashlib.sha256(manifest).hexdigest()

    def _stamp(self) -> Stamps:
        """Return a version stamp that changes whenever the run writes data."""
        database = self.run.database
        return stamps(database, database.with_name(f"{database.name}-wal"), self.run.manifest)
