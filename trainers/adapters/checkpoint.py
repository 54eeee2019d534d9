"""Functions that save a curriculum as one file in a third-party trainer's checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from coevo_gym.core.errors import StoreError
from coevo_gym.curricula.session.session_calls import TaskSession
from coevo_gym.store.folder import read_json, write_atomic

FILE = "curriculum.json"


def save_session(session: TaskSession, checkpoint: Path | str) -> Path:
    """Write a session's state atomically to a file in a checkpoint's folder; return its path.

    The folder is created if missing.

    Raises:
        StoreError: if the file cannot be written.
    """
    path = Path(checkpoint) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(session.state_dict()).encode())
    return path


def load_session(session: TaskSession, checkpoint: Path | str) -> None:
    """Restore the state that :func:`save_session` wrote.

    Raises:
        StoreError: if the checkpoint has no such file, or the file is damaged.
        ConfigError: if it was saved by a session with different sizes.
    """
    path = Path(checkpoint) / FILE
    if not path.is_file():
        raise StoreError(
            f"{path.parent} contains no {FILE}: it was saved without its curriculum, so resuming "
            "would combine trained weights with a new curriculum. Resume from another checkpoint."
        )
    session.load_state_dict(read_json(path))
