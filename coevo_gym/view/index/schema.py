"""The tables of an index file. The file is stored in the user's cache, not in the run's folder."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import tempfile
import time
from functools import lru_cache
from pathlib import Path

from coevo_gym.provision import home

logger = logging.getLogger(__name__)

VERSION = 2
TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value);
CREATE TABLE IF NOT EXISTS trajectories (
    number INTEGER PRIMARY KEY, arm TEXT, step INTEGER, group_id TEXT, position INTEGER,
    task_id TEXT, version INTEGER, success INTEGER, score REAL, end_reason TEXT, steps INTEGER,
    kinds TEXT, errors INTEGER, advice TEXT, advantage REAL);
CREATE UNIQUE INDEX IF NOT EXISTS by_place ON trajectories (arm, group_id, position);
CREATE INDEX IF NOT EXISTS by_task ON trajectories (task_id);
CREATE TABLE IF NOT EXISTS words (number INTEGER PRIMARY KEY, text TEXT);
CREATE TABLE IF NOT EXISTS groups (
    number INTEGER PRIMARY KEY, arm TEXT, id TEXT, step INTEGER, task_id TEXT, size INTEGER,
    episodes INTEGER, successes INTEGER, score REAL, kinds TEXT, stored INTEGER);
CREATE UNIQUE INDEX IF NOT EXISTS group_by_id ON groups (arm, id);
CREATE INDEX IF NOT EXISTS group_by_task ON groups (task_id);
CREATE TABLE IF NOT EXISTS signals (
    arm TEXT, step INTEGER, kind TEXT, count INTEGER, PRIMARY KEY (arm, step, kind));
CREATE TABLE IF NOT EXISTS tasks (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE, name TEXT, origin TEXT, split TEXT,
    instruction TEXT, text TEXT);
CREATE TABLE IF NOT EXISTS lineage (arm TEXT, round_id TEXT, task_id TEXT, parent_id TEXT);
CREATE TABLE IF NOT EXISTS rounds (
    number INTEGER PRIMARY KEY, arm TEXT, id TEXT, step INTEGER, env_steps INTEGER,
    pool_size INTEGER, body TEXT);
CREATE TABLE IF NOT EXISTS drafts (
    number INTEGER PRIMARY KEY, key TEXT, arms TEXT, round_id TEXT, step INTEGER, first INTEGER,
    position INTEGER, id TEXT, accepted INTEGER, gate TEXT, reason TEXT, kind TEXT,
    context_id TEXT, task_id TEXT, instruction TEXT, text TEXT);
CREATE INDEX IF NOT EXISTS draft_by_key ON drafts (key);
CREATE INDEX IF NOT EXISTS draft_by_id ON drafts (id);
CREATE INDEX IF NOT EXISTS draft_by_task ON drafts (task_id);
"""
"""SQL that creates the tables. ``number`` is the row id in the run's own database. ``kinds``
contains kinds of signals, ``arms`` arm names, and ``advice`` ids, each surrounded by commas.
``words.text`` is the text of the actions in lower case. ``rounds.body`` is the JSON of a row in the
list of rounds."""


def index_file(run: Path) -> Path:
    """Return the path of a run's index file, in a folder that only this user can access."""
    name = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:24]
    return _folder() / f"{name}.db"


@lru_cache(maxsize=4)
def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        spare = Path(tempfile.mkdtemp(prefix="coevo-view-"))
        logger.warning("cannot write to %s (%s); indexes are stored in %s", folder, error, spare)
        return spare


def _folder() -> Path:
    return _made(home() / "view")


def remove_stale() -> None:
    """Delete the indexes of runs that no longer exist."""
    for file in _folder().glob("*.db"):
        if is_stale(file):
            remove(file)


def is_stale(file: Path) -> bool:
    """Return True if an index belongs to a run that no longer exists."""
    try:
        connection = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)
        try:
            row = connection.execute("SELECT value FROM meta WHERE key = 'path'").fetchone()
        finally:
            connection.close()
    except sqlite3.Error:
        return False  # it is being created, or will be rebuilt when needed
    return row is not None and not Path(row[0]).is_dir()


def unused(days: float) -> list[Path]:
    """Return the indexes of deleted runs, and indexes not used for the given number of days."""
    since, found = time.time() - days * 86_400, list[Path]()
    for file in sorted((home() / "view").glob("*.db")):
        status = file.stat()  # checked before opening the file, which counts as a use
        if max(status.st_atime, status.st_mtime) < since or is_stale(file):
            found.append(file)
    return found


def remove(file: Path) -> None:
    """Delete an index and SQLite's auxiliary files."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
