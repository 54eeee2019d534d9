"""The weaker level: the kernel's Landlock and a stricter filter, where no namespaces can be made.

The program is one process without rights of root that reads the same files as at the stronger
level, writes none, and is refused the calls that would reach other processes or a network.
"""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from pathlib import Path

from coevo_gym.sandbox import cgroup, confine, seccomp
from coevo_gym.sandbox.hidden import inside, without
from coevo_gym.sandbox.level import DEVICES, SYSTEM, Finding, Level
from coevo_gym.sandbox.process import Program, Sandboxed, start

_NOT_COVERED = (
    "Programs start no processes and write no files. Not covered: sizes and dates of all files can "
    "be looked up, the host's name can be read, and no namespace stands behind the filter"
)


@cache
def finding() -> Finding:
    """Whether this level holds here."""
    if not seccomp.supported():
        detail = f"there is no system call filter for {os.uname().machine}"
        return Finding(Level.LANDLOCK, False, detail)
    version = confine.landlock_version()
    if not version:
        return Finding(Level.LANDLOCK, False, "the kernel has no Landlock, or it is switched off")
    groups = cgroup.available()
    caps = f"memory and threads capped by {groups}" if groups else "memory capped, threads not"
    return Finding(Level.LANDLOCK, True, f"Landlock {version}; {caps}. {_NOT_COVERED}")


def launch(program: Program, *, confined: bool) -> Sandboxed:
    """Start a program at this level, or with nothing but limits."""
    roots = [*SYSTEM, *map(str, program.readable)]
    parts = [without(root, inside(root, program.hidden)) for root in roots]
    order = {
        "parent": os.getpid(),
        "filter": seccomp.program(namespaces=False, processes=False).hex() if confined else "",
        "readable": [path for part in parts for path in part.whole],
        "listed": [path for part in parts for path in part.opened],
        "devices": DEVICES,
    }
    script = Path(confine.__file__)

    def wrapped(gate: int) -> list[str]:
        return [sys.executable, "-I", "-S", "-B", str(script), str(gate), *program.command]

    level = Level.LANDLOCK if confined else Level.NONE
    return start(level, program, wrapped, opening=json.dumps(order).encode())
