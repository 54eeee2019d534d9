"""States of runs and evaluations, read from their folders."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from coevo_gym.core.errors import StoreError
from coevo_gym.run.manifest import read_manifest
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.folder import RunFolder, in_use, read_json
from coevo_gym.store.reader import RunReader

State = Literal["running", "finished", "stopped", "damaged"]


def state_of_run(folder: RunFolder) -> tuple[State, str]:
    """Return the state of a run, and a description of its damage or "".

    Files are opened but not read completely, so a damaged row may be missed.
    """
    try:
        _, config = read_manifest(folder)
        stored = any((folder.checkpoints / arm).is_dir() for arm in config.arms)
        return _state(folder, stored=stored), ""
    except StoreError as error:
        return "damaged", str(error)


def state_of_evaluation(folder: EvalFolder) -> tuple[State, str]:
    """Return the state of an evaluation, and a description of its damage or ""."""
    try:
        folder.read_config()
        return _state(folder, stored=folder.database.is_file()), ""
    except StoreError as error:
        return "damaged", str(error)


def _state(folder: RunFolder | EvalFolder, *, stored: bool) -> State:
    """Return the state of a folder with readable settings.

    Args:
        folder: the folder.
        stored: True if the database must exist.

    Raises:
        StoreError: if the folder is damaged.
    """
    if in_use(folder.path):
        return "running"
    if stored:
        RunReader(folder.database)
    if not folder.summary.is_file():
        return "stopped"
    read_json(folder.summary)
    return "finished"


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder, without following links."""
    if path.is_symlink() or not path.is_dir():
        return _bytes(path)
    return sum(_bytes(file) for file in path.rglob("*") if file.is_symlink() or not file.is_dir())


def changed_at(folder: Path) -> str:
    """Return the time of the last write in a folder, in UTC (ISO 8601); "" if it is empty."""
    times = []
    for path in folder.iterdir():
        try:
            times.append(path.stat().st_mtime)
        except OSError:  # it has just gone
            continue
    if not times:
        return ""
    return datetime.fromtimestamp(max(times), UTC).isoformat(timespec="seconds")


def _bytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # it has just gone
        return 0
