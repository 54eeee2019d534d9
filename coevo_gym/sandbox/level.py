"""Isolation levels, and the resource limits that apply at each level."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

SYSTEM = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    *("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64"),
    *("/usr/libexec", "/usr/share"),
    *("/usr/local/bin", "/usr/local/sbin", "/usr/local/lib", "/usr/local/lib64"),
    *("/usr/local/libexec", "/usr/local/share"),
    *("/etc/ld.so.cache", "/etc/alternatives"),
)
"""Files that every program may read: programs and libraries, but no ``src`` folder."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
"""Devices that every program may read and write."""


class Level(StrEnum):
    """Isolation levels, strongest first."""

    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    NONE = "none"


class ResourceLimits(NamedTuple):
    """Resource limits for a sandboxed program.

    Attributes:
        memory_bytes: total memory of all its processes, including files in the scratch folder, and
            the address space of each process.
        pids: total number of processes and threads. Without cgroups, there is one process,
            and threads are counted only for users other than root.
        scratch_bytes: size of the scratch folder, and of any one file.
        open_files: file descriptors per process.
    """

    memory_bytes: int = 1 << 30
    pids: int = 32
    scratch_bytes: int = 64 << 20
    open_files: int = 256


DEFAULT_LIMITS = ResourceLimits()


class Finding(NamedTuple):
    """An isolation level, and whether it works on this machine.

    Attributes:
        level: the level.
        holds: True if the level works, according to a trial.
        detail: its mechanism and gaps, or the reason why it does not work.
    """

    level: Level
    holds: bool
    detail: str
