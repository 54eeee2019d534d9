"""Caps on all processes of a sandbox together, by the kernel's control groups.

A group can be made where this process may write to the tree of groups: as root, or as a user to
whom a session manager has given a part of it. A helper that outlives this process removes what is
left when this process is killed.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from secrets import token_hex
from time import monotonic, sleep

from coevo_gym.core.errors import EnvBackendError
from coevo_gym.sandbox.level import Limits

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_PATIENCE_S = 30.0
_numbers = itertools.count(1)
_lock = threading.Lock()

# Waits until its input ends, which is when the process that made it has ended, then removes the
# groups with all that is in them.
_SWEEPER = """
{
  trap "" HUP INT TERM
  read -r _
  for _ in $(seq 300); do
    left=
    for base; do
      kill -KILL $(cat "$base"/*/cgroup.procs) 2>/dev/null
      rmdir "$base"/*/ "$base" 2>/dev/null
      [ -d "$base" ] && left=yes
    done
    [ "$left" ] || exit
    sleep 0.1
  done
} <&3 &
"""


class Group:
    """One control group: a folder in each hierarchy that caps memory or processes.

    Args:
        folders: its folders, which are there from :meth:`make` to :meth:`remove`.
    """

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self._folders = folders

    def make(self) -> None:
        """Make its folders."""
        for folder in self._folders:
            folder.mkdir()

    def cap(self, limits: Limits) -> None:
        """Put limits on all in it together."""
        for folder in self._folders:
            for file, value in _caps(limits):
                if (folder / file).exists():
                    (folder / file).write_text(str(value))

    def add(self, pid: int) -> None:
        """Put a process in, and with it all that it starts from now on."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def kill(self) -> None:
        """Kill all processes that are in it, and wait until they are gone.

        Raises:
            EnvBackendError: if they do not go.
        """
        end = monotonic() + _PATIENCE_S
        for folder in self._folders:
            while pids := _pids(folder):
                for pid in pids:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                if monotonic() > end:
                    raise EnvBackendError(f"Processes {pids} outlive SIGKILL; they are in {folder}")
                sleep(0.005)

    def remove(self) -> None:
        """Remove it, with what is left in it."""
        self.kill()
        for folder in self._folders:
            with suppress(FileNotFoundError):
                folder.rmdir()


def available() -> str:
    """Which control groups can be made here, in words; "" if none."""
    bases = _own_bases()
    if not bases:
        return ""
    return "control groups v2" if len(bases) == 1 else "control groups v1"


def make(limits: Limits) -> Group | None:
    """A new group with caps; None if none can be made here."""
    name = str(next(_numbers))
    bases = _own_bases()
    if not bases:
        return None
    group = Group(tuple(base / name for base in bases))
    group.make()
    group.cap(limits)
    return group


def _caps(limits: Limits) -> Iterator[tuple[str, int]]:
    """Files and their values, of both versions."""
    yield "pids.max", limits.pids + 1  # the first process is bubblewrap's own
    yield "memory.limit_in_bytes", limits.memory_bytes
    yield "memory.memsw.limit_in_bytes", limits.memory_bytes
    yield "memory.max", limits.memory_bytes
    yield "memory.swap.max", 0


def _own_bases() -> tuple[Path, ...]:
    with _lock:
        return _bases(os.getpid())


@cache
def _bases(owner: int) -> tuple[Path, ...]:
    """The folders that hold this process's groups; () if none can be made."""
    bases = tuple(parent / f"coevo-{owner}-{token_hex(4)}" for parent in _parents())
    try:
        for base in bases:
            base.mkdir()
            if (base / "cgroup.subtree_control").exists():
                (base / "cgroup.subtree_control").write_text("+memory +pids")
        _try_out(bases)
    except OSError:
        for base in bases:
            with suppress(OSError):
                base.rmdir()
        return ()
    if bases:
        _start_sweeper(bases)
    return bases


def _try_out(bases: tuple[Path, ...]) -> None:
    """Put a process into a group: a folder that can be made may still be out of its reach."""
    trial = Group(tuple(base / "trial" for base in bases))
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        try:
            trial.make()
            trial.add(process.pid)
        finally:
            trial.remove()


def _parents() -> tuple[Path, ...]:
    """Where groups with both caps can be made: two folders (v1), one (v2), or none."""
    own = {}
    for line in _MEMBERSHIP.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path.lstrip("/")))
    if "memory" in own and "pids" in own:
        v1 = (_ROOT / "memory" / own["memory"], _ROOT / "pids" / own["pids"])
        return v1 if all(os.access(folder, os.W_OK) for folder in v1) else ()
    # A group that holds processes hands out no controllers, so ours lies beside the own one.
    here = _ROOT / own.get("", "")
    for folder in (here, here.parent):
        with suppress(OSError):
            handed_out = (folder / "cgroup.subtree_control").read_text().split()
            if {"memory", "pids"} <= set(handed_out) and os.access(folder, os.W_OK):
                return (folder,)
    return ()


def _start_sweeper(bases: tuple[Path, ...]) -> None:
    reading, _ = os.pipe()  # the other end stays open until this process ends
    try:
        subprocess.run(  # noqa: S603
            ["/bin/sh", "-c", f"exec 3<&0; {_SWEEPER}", "sh", *map(str, bases)],
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            start_new_session=True,
            check=True,
        )
    finally:
        os.close(reading)


def _pids(folder: Path) -> list[int]:
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    except OSError:  # it has been removed
        return []
