"""Tasks as JSON lines: one task a line, UTF-8."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from coevo_gym.core.errors import TaskError
from coevo_gym.core.task import Task


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Read a JSONL file of tasks.

    Raises:
        TaskError: if there is no such file, or a line is not a task; the message says which.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TaskError(f"Cannot read tasks from {path}: {error.strerror}.") from error
    tasks = []
    # Only b"\n" ends a line: str.splitlines would also split on U+2028 inside a text.
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            tasks.append(Task.from_json(line))
        except TaskError as error:
            raise TaskError(f"{path}, line {number}: {error}") from error
    return tuple(tasks)


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks as JSONL."""
    path.write_bytes(b"".join(task.to_json().encode() + b"\n" for task in tasks))
