"""``progress.json``: the current phase, progress and cost of a long-running command.

The file is in the folder that the command writes to: the folder of a run, an evaluation, a table or
an installation. Readers do not need access to the command itself.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from coevo_gym.core.reading import open_regular
from coevo_gym.core.spend import Cost
from coevo_gym.core.task import FrozenDict, FrozenModel

PROGRESS = "progress.json"
"""Name of the progress file."""
WorkState = Literal["running", "finished", "stopped", "failed"]


class PastPhase(FrozenModel):
    """A finished phase of a command.

    Attributes:
        name: name of the phase.
        total: amount of work in it; 0 if unknown.
        seconds: duration in seconds.
    """

    name: str
    total: int = Field(ge=0)
    seconds: float = Field(ge=0)


class WorkProgress(FrozenModel):
    """The progress of a long-running command.

    Attributes:
        version: version of this format.
        work: kind of work: ``train``, ``eval``, ``experiment`` or ``install``.
        name: name of the run, evaluation or installation.
        state: ``running``, ``finished``, ``stopped`` (by the user, or killed) or ``failed``.
        error: kind of the error after a failure; the command prints the details.
        part: number of the current part, such as the cell of a table, from 1.
        parts: number of parts; 1 for work without parts.
        part_name: name of the current part.
        phase: name of the current phase; "" before the first phase.
        done: amount of work done in the phase.
        total: amount of work in the phase; 0 if unknown.
        steps: env steps that agents took in the phase, including running episodes.
        tokens: tokens that models read and wrote so far, including the policy and running
            episodes; a resumed run counts the policy's tokens from 0.
        facts: further information as text, such as ``{"success": "31 %"}``.
        rate: amount of work done per second; None before the first work is done.
        left_s: estimated remaining seconds of the phase at ``updated``; None if unknown.
        all_left_s: estimated remaining seconds of all work; None if unknown.
        phases: finished phases, in order; only the latest phases if there are many.
        cost: total cost so far.
        started: start time of this process's work, in UTC (ISO 8601).
        updated: time of this update, in UTC.
        pid: id of the writing process, on its own machine.
    """

    version: Literal[1] = 1
    work: str
    name: str
    state: WorkState
    error: str = ""
    part: int = Field(default=1, ge=1)
    parts: int = Field(default=1, ge=1)
    part_name: str = ""
    phase: str = ""
    done: int = Field(default=0, ge=0)
    total: int = Field(default=0, ge=0)
    steps: int = Field(default=0, ge=0)
    tokens: int = Field(default=0, ge=0)
    facts: Mapping[str, str] = FrozenDict()
    rate: float | None = None
    left_s: float | None = None
    all_left_s: float | None = None
    phases: tuple[PastPhase, ...] = ()
    cost: Cost = Cost()
    started: str
    updated: str
    pid: int


def read_progress(folder: Path) -> WorkProgress | None:
    """Read the progress file in a folder. Return None if there is none.

    If the process was killed, the file still says ``running``, but no process holds its lock.
    The state is then reported as ``stopped``.
    """
    try:
        with open_regular(folder / PROGRESS) as file:
            alive = _is_locked(file.fileno())
            progress = WorkProgress.model_validate_json(file.read())
    except (OSError, ValidationError):
        return None  # missing, or torn by a power failure; the next write repairs it
    if progress.state == "running" and not alive:
        return progress.model_copy(update={"state": "stopped", "left_s": None, "all_left_s": None})
    return progress


class ProgressWriter:
    """A writer that keeps the progress file open while the process runs.

    Readers always see a complete file. Each version is locked from before it gets its name until
    the next version has it, so that readers can distinguish running from killed work. The file
    is not synced to disk, because losing it in a power failure does no harm. The folder is created
    if missing.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._begun = folder / PROGRESS, False
        self._handle: int | None = None

    def write(self, progress: WorkProgress) -> None:
        """Replace the progress file with a new version.

        Raises:
            OSError: if the file cannot be written.
        """
        if not self._begun:  # a folder that was moved later is not created again
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._begun = True
        temporary = self._path.with_name(f".{PROGRESS}.{os.getpid()}.part")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.write(handle, progress.model_dump_json(indent=2).encode() + b"\n")
            with suppress(OSError):  # on a file system without locks, work appears stopped
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.replace(temporary, self._path)
        except BaseException:
            os.close(handle)
            temporary.unlink(missing_ok=True)
            raise
        self.close()
        self._handle = handle

    def close(self) -> None:
        """Close the progress file and release its lock. Repeated calls have no effect."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def utc_now() -> str:
    """Return the current time in UTC, in the format that the progress file uses."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _is_locked(handle: int) -> bool:
    """Return True if a process holds a lock on an open file."""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
