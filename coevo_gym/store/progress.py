"""``progress.json``: what a long piece of work is doing, how far it is, and what it has cost.

It lies in the folder that the work writes to: that of a run, of an evaluation, of a table, or of
what is being installed. Whoever reads it needs nothing of the work itself.
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

from coevo_gym.core.spend import Cost
from coevo_gym.core.task import FrozenDict, FrozenModel

PROGRESS = "progress.json"
"""Name of the file."""
WorkState = Literal["running", "finished", "stopped", "failed"]


class PastPhase(FrozenModel):
    """A phase that is over.

    Attributes:
        name: what was done.
        total: how much there was of it; 0 where that was not known.
        seconds: how long it took.
    """

    name: str
    total: int = Field(ge=0)
    seconds: float = Field(ge=0)


class WorkProgress(FrozenModel):
    """How far a piece of work is.

    Attributes:
        version: of this format.
        work: what sort of work it is: ``train``, ``eval``, ``experiment`` or ``install``.
        name: what is trained, evaluated or installed.
        state: ``running``; ``finished``; ``stopped`` by somebody, or killed; or ``failed``.
        error: of what failed, the kind of error; the command has printed the rest of it.
        part: number of the part that is under way, from 1: the cell of a table.
        parts: how many there are; 1 of what has no parts.
        part_name: name of the part.
        phase: what is being done; "" before the first phase.
        done: how much of the phase is done.
        total: how much there is of it; 0 where that is not known.
        steps: env steps that agents took in the phase, those of episodes under way included.
        tokens: tokens that models read and wrote so far, those of the policy and of episodes under
            way included; a run that is resumed counts the policy's anew.
        facts: what else is told of it, in words: ``{"success": "31 %"}``.
        rate: how much of it is done in a second; None before anything is.
        left_s: seconds that the phase still takes, as estimated at ``updated``; None where nobody
            knows.
        all_left_s: seconds that all of the work still takes; likewise.
        phases: the phases that are over, in order; of many the last ones.
        cost: what all of the work has cost so far.
        started: when this process began with it, in UTC (ISO 8601).
        updated: when this was written, in UTC.
        pid: id of the process that wrote it, on its own machine.
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
    """How far the work in a folder is; None where nothing is told of it.

    The file of work that was killed still says that it is running. Nobody holds it open then, and
    it is told as ``stopped``.
    """
    try:
        with open(folder / PROGRESS, "rb") as file:
            alive = _held(file.fileno())
            told = WorkProgress.model_validate_json(file.read())
    except (OSError, ValidationError):
        return None  # not there, or cut short by a power cut: the next one is whole
    if told.state == "running" and not alive:
        return told.model_copy(update={"state": "stopped", "left_s": None, "all_left_s": None})
    return told


class ProgressWriter:
    """Writes the file, and holds it open while the work goes on.

    Whoever reads it sees a whole one at any moment. It is locked before it gets its name and until
    another one has it, so that a reader can tell work that goes on from work that was killed. It
    is not synced: it tells nothing that a power cut could make dear.

    Args:
        folder: where; made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROGRESS
        self._handle: int | None = None

    def write(self, told: WorkProgress) -> None:
        """Put it in the place of what was told before.

        Raises:
            OSError: if it cannot be written.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f".{PROGRESS}.{os.getpid()}.part")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.write(handle, told.model_dump_json(indent=2).encode() + b"\n")
            with suppress(OSError):  # a file system without locks: its work looks stopped
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.replace(temporary, self._path)
        except BaseException:
            os.close(handle)
            temporary.unlink(missing_ok=True)
            raise
        self.close()
        self._handle = handle

    def close(self) -> None:
        """Hold it no longer; twice is fine."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def now() -> str:
    """This moment in UTC, as it stands in the file."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _held(handle: int) -> bool:
    """Whether somebody holds a lock on an open file."""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
