"""What this process and all below it hold: memory, open files, processes, threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    """What a tree of processes holds.

    Attributes:
        memory_mb: proportional set size of all of them: a page that several share is shared out.
        files: open file descriptors.
        children: processes below this one.
        threads: of all of them.
    """

    memory_mb: float
    files: int
    children: int
    threads: int


def usage() -> Usage:
    """What this process and those below it hold now."""
    found = [held for pid in tree() if (held := _held(pid)) is not None]
    memory, files, threads = (sum(column) for column in zip(*found, strict=True))
    return Usage(memory, files, len(found) - 1, threads)


def tree() -> set[int]:
    """The ids of this process and of all below it."""
    parents = dict(_parents())
    below, size = {os.getpid()}, 0
    while len(below) > size:
        size = len(below)
        below |= {child for child, parent in parents.items() if parent in below}
    return below


def cpu_seconds() -> float:
    """Processor time of this process, of those below it that live, and of those that it buried."""
    ticks = 0
    for pid in tree():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended since
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _parents() -> Iterator[tuple[int, int]]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended since
        yield int(folder.name), int(fields[1])


def _held(pid: int) -> tuple[float, int, int] | None:
    """Memory, files and threads of one process; None if it has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        memory = _number(folder / "smaps_rollup", "Pss:") / 1024
        return memory, len(os.listdir(folder / "fd")), _number(folder / "status", "Threads:")
    except (OSError, StopIteration):
        return None


def _number(path: Path, name: str) -> int:
    lines = path.read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name)))
