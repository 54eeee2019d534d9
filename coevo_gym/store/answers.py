"""Where tapes keep answers: a table of the run's database, or a file of JSON lines."""

from __future__ import annotations

import json
import sqlite3
import threading
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from coevo_gym.core.errors import StoreError
from coevo_gym.core.inquiry import StoredAnswer
from coevo_gym.core.seams import Completion, Finish
from coevo_gym.core.spend import Usage
from coevo_gym.core.trajectory import TokenDecision
from coevo_gym.reading import check_plain
from coevo_gym.store.folder import append_lines, decoding, read_lines, storing

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, scope TEXT, template TEXT, body BLOB);
"""
_AT_ONCE = 500
"""Keys in one query; SQLite takes a thousand at least."""


class AnswerTable:
    """Answers in the table ``answers`` of a run's database; any thread may use it.

    A database from before there were tapes gets the table when it is opened for writing, and is
    without answers where it is only read. What is there of the run is left alone.

    Args:
        path: the database; made if it is not there.
        read_only: never write, as where the tape of another run is replayed.

    Raises:
        StoreError: if it cannot be opened, or is no database.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._lock = threading.Lock()
        with storing(path):
            if read_only:
                # A file that nobody writes to has no log, and its folder may not take one.
                written = path.with_name(f"{path.name}-wal").exists()
                how = "mode=ro" if written else "mode=ro&immutable=1"
                uri = f"{path.absolute().as_uri()}?{how}"
                self._db = sqlite3.connect(uri, uri=True, timeout=30, check_same_thread=False)
            else:
                self._db = sqlite3.connect(
                    path, timeout=30, isolation_level=None, check_same_thread=False
                )
                # FULL: a commit is on disk, also after a power cut.
                self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;")
                self._db.executescript(_SCHEMA)
            there = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'answers'"
            self._there = bool(self._db.execute(there).fetchone()[0])

    def get(self, keys: Sequence[str]) -> dict[str, StoredAnswer]:
        """Those of the answers that are there, by key."""
        found: dict[str, StoredAnswer] = {}
        for first in range(0, len(keys) if self._there else 0, _AT_ONCE):
            some = keys[first : first + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            query = f"SELECT key, scope, template, body FROM answers WHERE key IN ({marks})"  # noqa: S608 (marks)
            with self._lock, storing(self.path):
                rows = self._db.execute(query, some).fetchall()
            for key, scope, template, body in rows:
                found[key] = StoredAnswer(key, scope, template, self._unpack(body))
        return found

    def put(self, answers: Sequence[StoredAnswer]) -> None:
        """Keep answers, in place of what has their keys; on disk when this returns."""
        if not answers:
            return
        rows = [
            (key, scope, template, zlib.compress(json.dumps(completion_to_json(said)).encode()))
            for key, scope, template, said in answers
        ]
        with self._lock, storing(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", rows)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file; twice is fine."""
        self._db.close()

    def _unpack(self, body: bytes) -> Completion:
        with decoding(self.path):
            return completion_from_json(json.loads(zlib.decompress(body)))


class AnswerFile:
    """Answers in a file of JSON lines, one each; of lines with one key the last counts.

    Lines are only added. One that was cut short by the end of a process is passed over.

    Args:
        path: the file; made when the first answer is kept.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._kept: dict[str, StoredAnswer] = {}
        with storing(path):
            if path.exists():
                check_plain(path)
            lines = read_lines(path)
        for line in lines:
            try:
                said = completion_from_json(line)
                key, scope, template = line["key"], line["scope"], line["template"]
            except (ValueError, KeyError, TypeError) as error:
                raise StoreError(
                    f"{path} is no tape: the line {str(line)[:100]!r} is no answer ({error!r})."
                ) from error
            self._kept[key] = StoredAnswer(key, scope, template, said)

    def get(self, keys: Sequence[str]) -> dict[str, StoredAnswer]:
        """Those of the answers that are there, by key."""
        with self._lock:
            return {key: self._kept[key] for key in keys if key in self._kept}

    def put(self, answers: Sequence[StoredAnswer]) -> None:
        """Keep answers, in place of what has their keys; on disk when this returns."""
        if not answers:
            return
        lines = [
            {"key": key, "scope": scope, "template": template, **completion_to_json(said)}
            for key, scope, template, said in answers
        ]
        with self._lock:
            append_lines(self.path, lines)
            self._kept.update((answer.key, answer) for answer in answers)


def completion_to_json(said: Completion) -> dict[str, Any]:
    """A completion as a JSON object; of decisions, those over tokens are kept."""
    found: dict[str, Any] = {"text": said.text, "finish": str(said.finish)}
    if usage := said.usage.model_dump(exclude_defaults=True):
        found["usage"] = usage
    if isinstance(said.decision, TokenDecision):
        found["decision"] = _decisions().dump_python(said.decision, mode="json", exclude_none=True)
    return found


def completion_from_json(data: Mapping[str, Any]) -> Completion:
    """Inverse of :func:`completion_to_json`.

    Raises:
        ValueError: if the data are not those of a completion.
        KeyError: if a part is missing.
    """
    decision = _decisions().validate_python(data["decision"]) if "decision" in data else None
    usage = Usage.model_validate(data.get("usage", {}))
    return Completion(data["text"], decision, Finish(data["finish"]), usage)


@lru_cache(maxsize=1)
def _decisions() -> TypeAdapter[TokenDecision]:
    return TypeAdapter(TokenDecision)
