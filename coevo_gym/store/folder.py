"""A run's folder, and functions that write and delete files in it safely."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import shutil
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, BinaryIO

from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.core.panel import Panel
from coevo_gym.core.reading import check_regular_file, open_regular
from coevo_gym.core.registry import did_you_mean

RUNS = Path("runs")
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
"""Pattern for names of runs, tables and evaluations."""
NAME_RULE = "takes letters, digits and . _ -, and begins with a letter or a digit"


def check_folder_name(name: str) -> None:
    """Check a folder name given by the user.

    Raises:
        ConfigError: if the name is not allowed.
    """
    if not re.fullmatch(NAME, name):
        raise ConfigError(f"--name {NAME_RULE}, got {name!r}.")


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run's files."""

    path: Path

    @property
    def manifest(self) -> Path:
        """File with the run's settings and package versions."""
        return self.path / "manifest.json"

    @property
    def database(self) -> Path:
        """Database of tasks, rounds, signals and trajectories."""
        return self.path / "run.db"

    @property
    def panels(self) -> Path:
        """Folder with copies of the panels that the run is evaluated on."""
        return self.path / "panels"

    @property
    def metrics(self) -> Path:
        """File with the logged metrics, one JSON object per line."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """File with the final results table."""
        return self.path / "summary.json"

    @property
    def report(self) -> Path:
        """File with the HTML report."""
        return self.path / "report.html"

    @property
    def reproduction(self) -> Path:
        """File that says which published recipe the run reproduces; other runs have none."""
        return self.path / "reproduction.json"

    @property
    def reproduction_report(self) -> Path:
        """File with the HTML report on a reproduction."""
        return self.path / "reproduction.html"

    @property
    def sinks(self) -> Path:
        """File that records the data sent to metric sinks."""
        return self.path / "sinks.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints, with one subfolder per phase."""
        return self.path / "checkpoints"

    def write_panel(self, name: str, panel: Panel) -> None:
        """Store a copy of a panel on which the run is evaluated.

        Raises:
            StoreError: if it cannot be written.
        """
        with raise_store_errors(self.panels):
            self.panels.mkdir(exist_ok=True)
        write_atomic(self.panels / f"{name}.json", panel.to_json().encode())

    def read_panel(self, name: str) -> Panel:
        """Return the run's stored copy of a panel.

        Raises:
            ConfigError: if the copy is missing, or was edited.
        """
        return read_panel_copy(self.panels / f"{name}.json", "train the run again")

    @classmethod
    def of(cls, run: str) -> RunFolder:
        """Return the folder of an existing run, given its name under ``runs/`` or its path.

        Raises:
            ConfigError: if the run does not exist.
        """
        folder = cls.find(run)
        if folder is None:
            for path in (RUNS / run, Path(run)):
                if run and path.is_dir():
                    raise ConfigError(f"{path} is not a run{cls._describe_non_run(path)}")
            here = ", ".join(names := cls.names()) or "none"
            raise ConfigError(
                f"There is no run {run!r} in {RUNS}/ or at the path {run!r}. "
                f"{did_you_mean(run, names)}Runs here: {here}."
            )
        return folder

    @classmethod
    def _describe_non_run(cls, path: Path) -> str:
        """Explain why a folder is not a run, in words that complete an error message."""
        if runs := cls.of_table(path):
            n = f"{len(runs)} run{'s' * (len(runs) > 1)}"
            return f", but contains {n}. Name one, such as {runs[0].path}."
        if (path / "results.jsonl").is_file():
            return ", but an evaluation. Name a run; `coevo runs list` lists them."
        return (
            f": {path}/manifest.json, which records its settings, is missing. Restore it, or train "
            "again."
        )

    @classmethod
    def find(cls, run: str) -> RunFolder | None:
        """Return the folder of the run with this name or path, or None if it does not exist."""
        for path in (RUNS / run, Path(run)):
            if (path / "manifest.json").is_file():
                return cls(path)
        return None

    @staticmethod
    def names() -> list[str]:
        """Return the names of the runs under ``runs/``, excluding runs made for results tables."""
        return sorted(path.parent.name for path in RUNS.glob("*/manifest.json"))

    @staticmethod
    def table_folders() -> list[Path]:
        """Return the folders under ``runs/`` that contain runs, sorted by name."""
        return sorted({path.parents[1] for path in RUNS.glob("*/*/manifest.json")})

    @classmethod
    def of_table(cls, table: Path) -> list[RunFolder]:
        """Return the runs in a results table's folder, sorted by name; [] for any other folder."""
        return [cls(path.parent) for path in sorted(table.glob("*/manifest.json"))]

    def is_run(self) -> bool:
        """Return True if the folder contains a run, damaged or not."""
        if not self.manifest.is_file():
            return False
        return self.database.is_file() or has_keys(self.manifest, "config")

    def require_free_folder(self, *, overwrite: bool = False) -> list[str]:
        """Check that a new run may use the folder, and return the names of the files to replace.

        Raises:
            ConfigError: if the folder contains something else or a run that may not be
                overwritten, or is reached through a link.
        """
        if not self.path.is_dir():
            return []
        there = sorted(item.name for item in self.path.iterdir() if item.name != LOCK)
        if there and not self.is_run():
            raise ConfigError(
                f"{self.path} is not empty and is not a run ({there[0]}, …). Choose another --name."
            )
        if there and not overwrite:
            raise ConfigError(
                f"{self.path} already contains a run. Continue it with "
                f"`coevo resume {self.path.name}`, choose another --name, or pass --overwrite to "
                "delete it."
            )
        if there:
            refuse_links(self.path, RUNS)
        return there

    def create(self, *, overwrite: bool = False) -> None:
        """Create the folder for a new run, or empty the folder of an earlier run.

        ``overwrite`` allows deleting an earlier run with this name.

        Raises:
            ConfigError: if the folder is in use, see :meth:`require_free_folder`.
            StoreError: if the folder cannot be created or emptied.
        """
        with raise_store_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            for name in self.require_free_folder(overwrite=overwrite):
                delete(self.path / name)

    def lock(self) -> AbstractContextManager[None]:
        """Lock the folder against other processes; see :func:`lock_folder`."""
        return lock_folder(self.path)


def is_in_use(path: Path) -> bool:
    """Return True if a process has locked a folder for writing; see :func:`lock_folder`."""
    return any(map(_is_locked, (path / LOCK, path)))


def _is_locked(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # it might be a pipe
    except OSError:
        return False  # the folder was never written to, or is not readable
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)  # some file systems cannot lock folders
    finally:
        os.close(handle)
    return False


@contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """Context manager that locks a folder, creating it if missing.

    A file in the folder is locked, and the folder itself where the file system allows it, so that
    deleting the file does not end the lock.

    Raises:
        StoreError: if another process holds the lock.
    """
    with raise_store_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        file = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        folder = os.open(path, os.O_RDONLY)
    try:
        try:
            _lock_handle(file)
            _lock_handle(folder, optional=True)
        except OSError as error:
            raise StoreError(
                f"{path} is in use by another process. Wait for it to finish, or choose another "
                "--name."
            ) from error
        yield
    finally:
        os.close(folder)
        os.close(file)


def _lock_handle(handle: int, *, optional: bool = False) -> None:
    """Lock an open file or folder, retrying in case :func:`is_in_use` is briefly holding the lock.

    With ``optional``, nothing is locked if the file system cannot lock it.
    """
    for tries_left in range(_TRIES - 1, -1, -1):
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not tries_left:
                raise
            time.sleep(0.02)
        except OSError:
            if not optional:
                raise
            return None
    return None


LOCK = ".lock"
_TRIES = 5
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def file_identity(file: Path) -> tuple[int, int] | None:
    """Return a file's device and inode, or None if the file cannot be found."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Context manager that commits its writes to a database atomically."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a database for reading, without creating any files. Its folder may be read-only."""
    # A file without a writer has no log beside it, and opening it as writable would create one.
    has_wal = path.with_name(f"{path.name}-wal").exists()
    how = "mode=ro" if has_wal else "mode=ro&immutable=1"
    uri = f"{path.absolute().as_uri()}?{how}"
    db = sqlite3.connect(uri, uri=True, timeout=30, check_same_thread=False)
    db.create_function("checksum_of", -1, _checksum_of)
    return db


def connect_to_write(path: Path) -> sqlite3.Connection:
    """Open or create a database whose commits survive a power failure."""
    db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    db.create_function("checksum_of", -1, _checksum_of)
    db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;")
    return db


def _checksum_of(*values: Any) -> int:
    """Return the checksum of a database row's values."""
    return zlib.crc32(repr(values).encode())


@contextmanager
def raise_store_errors(path: Path) -> Iterator[None]:
    """Raise a :class:`StoreError` with advice if reading or writing ``path`` fails."""
    try:
        yield
    except OSError as error:
        full = error.errno in _FULL
        reason = error.strerror or str(error)
        raise StoreError(f"Cannot write {path}: {reason}. {_ADVICE[full]}") from error
    except sqlite3.Error as error:
        # Damage has no error class of its own; it may also show as text that is not UTF-8.
        message = str(error)
        damaged = (
            type(error) is sqlite3.DatabaseError or "decode" in message or "user-defined" in message
        )
        advice = DAMAGED if damaged else _ADVICE["full" in str(error)]
        raise StoreError(f"Cannot use {path}: {error}. {advice}") from error
    except UnicodeDecodeError as error:  # an SQLite error that quotes damaged text
        raise StoreError(f"Cannot use {path}: {error}. {DAMAGED}") from error


@contextmanager
def raise_decode_errors(path: Path) -> Iterator[None]:
    """Raise a :class:`StoreError` if decoding a database row fails."""
    try:
        yield
    except (zlib.error, ValueError, LookupError, TypeError) as error:
        reason = shorten(str(error), 300)
        raise StoreError(f"A row in {path} cannot be read: {reason}. {DAMAGED}") from error


DAMAGED = "The file is damaged. Restore a copy of it, or start over with --overwrite."
_ADVICE = {
    True: "The disk is full; data reported as saved is safe. Free some space, then resume.",
    False: "Check the folder's permissions, or choose another folder.",
}


def read_panel_copy(path: Path, otherwise: str) -> Panel:
    """Read the copy of a panel that is stored next to its results.

    Args:
        path: path of the copy.
        otherwise: advice if it cannot be restored, for the message.

    Raises:
        ConfigError: if it is missing, or was edited.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}), so the tasks in this panel are unknown. "
            f"Restore the file, or {otherwise}."
        ) from error
    return Panel.from_json(text, str(path))


def write_atomic(path: Path, data: bytes, *, synced: bool = True) -> None:
    """Write a file atomically, so that it always contains either the old or the new content.

    Without ``synced``, which is much faster, this is true after a crash of the process, but a power
    failure may damage the file.

    Raises:
        StoreError: if the file cannot be written; the old file is kept.
    """

    def write(file: BinaryIO) -> None:
        file.write(data)

    with raise_store_errors(path):
        temporary = path.with_name(f".{path.name}.part")
        write_then_rename(temporary, write, lambda _: path.name, synced=synced)


def write_then_rename(
    temporary: Path,
    write: Callable[[BinaryIO], None],
    name: Callable[[Path], str],
    *,
    synced: bool = True,
) -> Path:
    """Write a file under a temporary name, then rename it.

    Args:
        temporary: path of the temporary file; a file left by a killed process is overwritten.
        write: function that writes the content to a stream.
        name: function that returns the final name from the written ``temporary``.
        synced: True to sync the file and its name to disk.

    Returns:
        The final path.

    Raises:
        OSError: if the file cannot be written; an existing file is kept.
    """
    try:
        if temporary.is_fifo():  # opening it would wait for a reader
            temporary.unlink()
        with open(temporary, "wb") as file:
            write(file)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        path = temporary.with_name(name(temporary))
        os.replace(temporary, path)
        if synced:
            _sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def write_json(path: Path, value: Any, *, synced: bool = True) -> None:
    """Write a JSON file, replacing non-finite numbers with null; see :func:`write_atomic`."""
    text = json.dumps(replace_non_finite(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomic(path, f"{text}\n".encode(), synced=synced)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        StoreError: if the file is missing or damaged.
    """
    try:
        with open_regular(path) as file:
            return json.loads(file.read())
    except OSError as error:
        raise StoreError(f"Cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {error}.") from error


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one JSON object as a line; see :func:`append_lines`."""
    append_lines(path, [value])


def append_lines(path: Path, values: Sequence[Mapping[str, Any]]) -> None:
    """Append JSON objects to a file, one per line, and sync the file to disk.

    Raises:
        StoreError: if the lines cannot be written; a torn line may remain, which readers skip.
    """
    lines = b"".join(_encode_json(value) + b"\n" for value in values)
    with raise_store_errors(path), open_to_append(path) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            # A torn line before the new lines must not absorb the first of them.
            lines = lines if file.read(1) == b"\n" else b"\n" + lines
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())


def open_to_append(path: Path) -> BinaryIO:
    """Open or create a regular file for appending and reading.

    Raises:
        OSError: if the file cannot be opened, or is not a regular file.
    """
    if path.exists():
        check_regular_file(path, pipes=False)
    return path.open("ab+")


def _encode_json(value: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(replace_non_finite(value), ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can represent as an escape
        return json.dumps(replace_non_finite(value), allow_nan=False).encode()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a JSON Lines file, skipping incomplete lines.

    Raises:
        StoreError: if the file exists but cannot be read.
    """
    if not path.exists():
        return []
    try:
        with open_regular(path) as file:
            data = file.read()
    except OSError as error:
        raise StoreError(f"Cannot read {path}: {error.strerror}.") from error
    values = []
    for line in data.split(b"\n"):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue  # writing this line was interrupted; its work is done again
        if isinstance(value, dict):
            values.append(value)
    return values


def rewrite_keeping_lines(path: Path, keep: Callable[[Mapping[str, Any]], bool]) -> None:
    """Rewrite a JSON Lines file with only the lines for which ``keep`` returns True."""
    lines = [line for line in read_lines(path) if keep(line)]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_atomic(path, text.encode())


def replace_non_finite(value: Any) -> Any:
    """Replace every non-finite number in a JSON value with null."""
    if isinstance(value, Mapping):
        return {key: replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def delete(path: Path) -> None:
    """Delete a file, a link, or a folder with its contents. Links are removed, not followed.

    Raises:
        OSError: if the path cannot be deleted.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def resolve_if_linked(path: Path, *roots: Path) -> Path | None:
    """Return the real path if a path goes through symbolic links, or None otherwise.

    The roots may themselves be links, for example to a larger disk.
    """
    absolute = Path(os.path.abspath(path))
    expected = absolute
    for root in roots:
        base = Path(os.path.abspath(root))
        if absolute.is_relative_to(base):
            expected = root.resolve() / absolute.relative_to(base)
    target = path.resolve()
    return None if target == expected else target


def refuse_links(path: Path, *roots: Path) -> None:
    """Check that deleting a folder would not follow a symbolic link.

    The roots may themselves be links, as in :func:`resolve_if_linked`.

    Raises:
        ConfigError: if the path is or contains a link.
    """
    target = resolve_if_linked(path, *roots)
    if target is not None:
        raise ConfigError(
            f"{path} is a symbolic link, or is reached through one: it points to {target}. Nothing "
            "was deleted. Use the path of that folder itself, or remove the link."
        )


def has_keys(file: Path, *keys: str) -> bool:
    """Return True if a JSON file contains an object with the given keys.

    A name such as ``config.json`` alone does not prove that coevo_gym created a folder.
    """
    try:
        value = read_json(file)
    except StoreError:
        return False
    return isinstance(value, dict) and all(key in value for key in keys)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
