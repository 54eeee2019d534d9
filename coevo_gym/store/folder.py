"""The folder of a run, and how files in it are written so that none is ever half there."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from textwrap import shorten
from typing import Any, BinaryIO

from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.store.deleting import check_deletable, delete, written_by_us

RUNS = Path("runs")
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
"""Pattern of the names of runs, tables and evaluations."""
NAME_RULE = "takes letters, digits and . _ -, and begins with a letter or a digit"


def check_name(name: str) -> None:
    """Check a name that a user gave a folder.

    Raises:
        ConfigError: if it cannot be the name of a folder.
    """
    if not re.fullmatch(NAME, name):
        raise ConfigError(f"--name {NAME_RULE}; actual: {name!r}.")


@dataclass(frozen=True)
class RunFolder:
    """Where the files of a run are.

    Attributes:
        path: the folder itself.
    """

    path: Path

    @property
    def manifest(self) -> Path:
        """What was run, with what."""
        return self.path / "manifest.json"

    @property
    def database(self) -> Path:
        """Tasks, rounds, signals and trajectories."""
        return self.path / "run.db"

    @property
    def metrics(self) -> Path:
        """Numbers over time, one JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """The final table."""
        return self.path / "summary.json"

    @property
    def report(self) -> Path:
        """The report for people."""
        return self.path / "report.html"

    @property
    def sinks(self) -> Path:
        """What was sent to sinks."""
        return self.path / "sinks.json"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints, one folder a phase."""
        return self.path / "checkpoints"

    @classmethod
    def of(cls, run: str) -> RunFolder:
        """The folder of an existing run.

        Args:
            run: its name under ``runs/``, or its path.

        Raises:
            ConfigError: if there is none.
        """
        found = cls.find(run)
        if found is None:
            for path in (RUNS / run, Path(run)):
                if run and path.is_dir():
                    raise ConfigError(
                        f"{path} is no run: {path / 'manifest.json'} is missing, which says what "
                        "was run. Put it back, or train anew."
                    )
            names = cls.names()
            close = get_close_matches(run, names, n=1)
            meant = f"Did you mean {close[0]!r}? " if close else ""
            raise ConfigError(
                f"There is no run {run!r}, in {RUNS}/ or as a path. {meant}"
                f"Runs here: {', '.join(names) or 'none'}."
            )
        return found

    @classmethod
    def find(cls, run: str) -> RunFolder | None:
        """The folder of the run with this name or path; None if there is none."""
        for path in (RUNS / run, Path(run)):
            if (path / "manifest.json").is_file():
                return cls(path)
        return None

    @staticmethod
    def names() -> list[str]:
        """Names of the runs under ``runs/``, those of tables not among them."""
        return sorted(path.parent.name for path in RUNS.glob("*/manifest.json"))

    @staticmethod
    def tables() -> list[Path]:
        """The folders under ``runs/`` whose folders are runs, by name."""
        return sorted({path.parents[1] for path in RUNS.glob("*/*/manifest.json")})

    @classmethod
    def of_table(cls, table: Path) -> list[RunFolder]:
        """The runs of a table, by name; none if it is no table."""
        return [cls(path.parent) for path in sorted(table.glob("*/manifest.json"))]

    def is_run(self) -> bool:
        """Return whether the folder holds a run, damaged or not."""
        if not self.manifest.is_file():
            return False
        return self.database.is_file() or written_by_us(self.manifest, "config")

    def check_free(self, *, overwrite: bool = False) -> list[str]:
        """Make sure that a new run may use the folder; return the names of what it replaces.

        Raises:
            ConfigError: if the folder holds something else, or a run that may not be overwritten,
                or if it is reached through a link.
        """
        if not self.path.is_dir():
            return []
        there = sorted(item.name for item in self.path.iterdir() if item.name != LOCK)
        if there and not self.is_run():
            raise ConfigError(
                f"{self.path} is not empty and holds no run ({there[0]}, …). Choose another --name."
            )
        if there and not overwrite:
            raise ConfigError(
                f"{self.path} holds a run already. Go on with `coevo resume {self.path.name}`, "
                "choose another --name, or pass --overwrite to delete it."
            )
        if there:
            check_deletable(self.path, RUNS)
        return there

    def create(self, *, overwrite: bool = False) -> None:
        """Make the folder for a new run, or empty that of an earlier one.

        Args:
            overwrite: delete an earlier run of this name.

        Raises:
            ConfigError: if the folder is taken, see :meth:`check_free`.
            StoreError: if it cannot be made or emptied.
        """
        with storing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            for name in self.check_free(overwrite=overwrite):
                delete(self.path / name)

    def locked(self) -> AbstractContextManager[None]:
        """A scope in which no other process writes to this run; see :func:`locked`."""
        return locked(self.path)


def in_use(path: Path) -> bool:
    """Whether some process writes to a folder, see :func:`locked`; the folder is left alone."""
    try:
        handle = os.open(path / LOCK, os.O_RDONLY)
    except OSError:
        return False  # nobody has ever written to it, or nobody may look
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """A scope in which no other process writes to a folder, which is made if it is not there.

    Raises:
        StoreError: if one does.
    """
    with storing(path):
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            _lock(handle)
        except OSError as error:
            raise StoreError(
                f"{path} is in use by another process. Wait for it, or choose another --name."
            ) from error
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    """Lock an open file; whoever looks with :func:`in_use` holds it for a moment, too."""
    for tries_left in range(_TRIES - 1, -1, -1):
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not tries_left:
                raise
            time.sleep(0.02)


LOCK = ".lock"
_TRIES = 5
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit what the block writes, all or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn a failure to read or write ``path`` into a :class:`StoreError` that says what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in _FULL
        reason = error.strerror or str(error)
        raise StoreError(f"Cannot write {path}: {reason}. {_ADVICE[full]}") from error
    except sqlite3.Error as error:
        # Damage is no kind of error of its own, or text that is not UTF-8.
        damaged = type(error) is sqlite3.DatabaseError or "decode" in str(error)
        advice = DAMAGED if damaged else _ADVICE["full" in str(error)]
        raise StoreError(f"Cannot use {path}: {error}. {advice}") from error
    except UnicodeDecodeError as error:  # an error of SQLite that quotes damaged text
        raise StoreError(f"Cannot use {path}: {error}. {DAMAGED}") from error


@contextmanager
def decoding(path: Path) -> Iterator[None]:
    """Turn a failure to decode a row of a database into a :class:`StoreError`."""
    try:
        yield
    except (zlib.error, ValueError, LookupError, TypeError) as error:
        reason = shorten(str(error), 300)
        raise StoreError(f"A row of {path} cannot be read: {reason}. {DAMAGED}") from error


DAMAGED = "The file is damaged. Put back a copy of it, or begin anew with --overwrite."
_ADVICE = {
    True: "The disk is full; what was reported as saved is safe. Free some space and resume.",
    False: "Check the folder's permissions, or choose another one.",
}


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that it is, at any moment, the old one or the new one as a whole.

    Raises:
        StoreError: if it cannot be written; what was there before stays.
    """

    def write(file: BinaryIO) -> None:
        file.write(data)

    with storing(path):
        write_then_name(path.with_name(f".{path.name}.part"), write, lambda _: path.name)


def write_then_name(
    temporary: Path, write: Callable[[BinaryIO], None], name: Callable[[Path], str]
) -> Path:
    """Write a file that gets its name when it is whole, in place of what has that name.

    Args:
        temporary: where the content lies until then; what a killed process left there goes.
        write: writes the content, as a stream.
        name: the file's name, from the written ``temporary``.

    Returns:
        The file.

    Raises:
        OSError: if it cannot be written; what was there before stays.
    """
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        path = temporary.with_name(name(temporary))
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, see :func:`write_atomic`; numbers that are not finite become null."""
    text = json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomic(path, f"{text}\n".encode())


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        StoreError: if it is missing or damaged.
    """
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise StoreError(f"Cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {error}.") from error


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one JSON object as a line, see :func:`append_lines`."""
    append_lines(path, [value])


def append_lines(path: Path, values: Sequence[Mapping[str, Any]]) -> None:
    """Append JSON objects, each as a line; all are on disk when this returns.

    Raises:
        StoreError: if they cannot be written; a torn line may stay, which readers pass over.
    """
    lines = b"".join(_json_of(value) + b"\n" for value in values)
    with storing(path), open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            # A torn line before this one must not swallow it.
            lines = lines if file.read(1) == b"\n" else b"\n" + lines
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())


def _json_of(value: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(finite(value), ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can hold as an escape
        return json.dumps(finite(value), allow_nan=False).encode()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one a line; a torn line is passed over."""
    if not path.exists():
        return []
    found = []
    for line in path.read_bytes().split(b"\n"):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the write of this line was cut short; what it said is done again
        if isinstance(value, dict):
            found.append(value)
    return found


def keep_lines(path: Path, keep: Callable[[Mapping[str, Any]], bool]) -> None:
    """Rewrite a file of JSON lines with those that ``keep`` accepts."""
    kept = [line for line in read_lines(path) if keep(line)]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept)
    write_atomic(path, text.encode())


def finite(value: Any) -> Any:
    """The JSON value with null for every number that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
