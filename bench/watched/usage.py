"""Memory, open files, processes and threads of this process and all of its children."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    """Resources of a process tree.

    Attributes:
        memory_mb: proportional set size of all processes; shared pages are divided among them.
        own_mb: the same without file-backed pages, whose shares depend on other processes.
        files: number of open file descriptors.
        children: number of processes below this one.
        threads: number of threads in all processes.
    """

    memory_mb: float
    own_mb: float
    files: int
    children: int
    threads: int


def usage() -> Usage:
    """Return the current resources of this process and its children."""
    rows = [row for pid in process_ids() if (row := _read_process(pid)) is not None]
    memory, own, files, threads = (sum(column) for column in zip(*rows, strict=True))
    return Usage(memory, own, int(files), len(rows) - 1, int(threads))


def process_ids() -> set[int]:
    """Return the ids of this process and of all of its children."""
    parents = dict(_parent_ids())
    below, size = {os.getpid()}, 0
    while len(below) > size:
        size = len(below)
        below |= {child for child, parent in parents.items() if parent in below}
    return below


def cpu_seconds() -> float:
    """Return the processor time of this process and its children, including finished ones."""
    ticks = 0
    for pid in process_ids():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended since
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _parent_ids() -> Iterator[tuple[int, int]]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended since
        yield int(folder.name), int(fields[1])


def _read_process(pid: int) -> tuple[float, float, int, int] | None:
    """Return memory, own memory, files and threads of a process, or None if it has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        memory = _read_numbers(folder / "smaps_rollup")
        status = _read_numbers(folder / "status")
        files = len(os.listdir(folder / "fd"))
        own = memory["Pss_Anon"] + memory["Pss_Shmem"]
        return memory["Pss"] / 1024, own / 1024, files, status["Threads"]
    except (OSError, KeyError):
        return None


def _read_numbers(path: Path) -> dict[str, int]:
    """Return the values in a file of /proc, by name."""
    matches = (re.match(r"(\w+):\s+(\d+)", line) for line in path.read_text().splitlines())
    return {match[1]: int(match[2]) for match in matches if match}
