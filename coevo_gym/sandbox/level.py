"""The levels of isolation, and the limits that hold at each."""

from __future__ import annotations

import resource
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
"""What every program may read: programs and libraries, and no ``src``, where projects may lie."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
"""What every program may read and write."""


class Level(StrEnum):
    """How a program is kept apart, the strongest first."""

    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    NONE = "none"


class Limits(NamedTuple):
    """What a sandboxed program may use.

    Attributes:
        memory_bytes: memory of all its processes together, files in the scratch folder included,
            and address space of each.
        pids: processes and threads together. Where no control groups can be made, there is one
            process, and threads are counted only for users other than root.
        scratch_bytes: size of the scratch folder, and of any one file.
        open_files: file descriptors of each process.
    """

    memory_bytes: int = 1 << 30
    pids: int = 32
    scratch_bytes: int = 64 << 20
    open_files: int = 256


DEFAULT_LIMITS = Limits()


class Finding(NamedTuple):
    """Whether a level can be used here.

    Attributes:
        level: the level.
        holds: whether it works, tried out.
        detail: what it works with and what it does not cover, or why it does not work.
    """

    level: Level
    holds: bool
    detail: str


def rlimits(limits: Limits) -> dict[int, int]:
    """The per-process limits of the kernel that stand for these, by resource."""
    return {
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_FSIZE: limits.scratch_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_CORE: 0,
    }
