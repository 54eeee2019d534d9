"""Lists of tasks, in memory and in JSONL files."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import SupportsIndex, overload

from coevo_gym.core.errors import SplitLeakError, TaskError
from coevo_gym.core.evaluation_mark import refuse_marked
from coevo_gym.core.reading import read_lines
from coevo_gym.core.task import Task


class TaskList(tuple[Task, ...]):
    """A tuple of tasks with a one-line ``repr``.

    Example:
        >>> TaskList()
        <no tasks>
    """

    __slots__ = ()

    @overload
    def __getitem__(self, index: SupportsIndex) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> TaskList: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Task | TaskList:
        if isinstance(index, slice):
            return TaskList(super().__getitem__(index))
        return super().__getitem__(index)

    def __repr__(self) -> str:
        return describe_tasks(self)


def describe_tasks(tasks: Sequence[Task]) -> str:
    """Return a one-line summary of tasks."""
    if not tasks:
        return "<no tasks>"
    first, last = tasks[0], tasks[-1]
    if len(tasks) == 1:
        return f"<1 {first.split} task of {first.benchmark}: {first.name}>"
    kind = f"{len(tasks)} {first.split} tasks of {first.benchmark}"
    return f"<{kind}, from {first.name} to {last.name}>"


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Read a JSONL file of tasks.

    Raises:
        TaskError: if the file does not exist, or a line is not a task; the message contains the
            line number.
        SplitLeakError: if a line is an exported episode on a held-out task.
    """
    tasks = []
    for number, line in task_lines(path):
        try:
            tasks.append(Task.from_json(decode_line(line)))
        except (TaskError, SplitLeakError) as error:
            raise type(error)(f"{path}, line {number}: {error}") from error
    return tuple(tasks)


def task_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the non-empty lines of a task file, with line numbers starting at 1.

    A byte order mark at the start of the file is left out.

    Raises:
        TaskError: if the file cannot be read.
    """
    try:
        for number, line in enumerate(read_lines(path), start=1):
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if line.strip():
                yield number, line
    except OSError as error:
        raise TaskError(f"Cannot read tasks from {path}: {error.strerror}.") from error
    except ValueError as error:
        raise TaskError(f"{str(path)!r} is not a valid file name: {error}.") from error


def decode_line(line: bytes) -> str:
    """Return a line of a file of tasks or rows as text.

    Raises:
        TaskError: if it is not UTF-8.
        SplitLeakError: if it is an exported episode on a held-out task.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise TaskError(
            f"the line is not UTF-8 text ({error.reason} at byte {error.start}). Save the file as "
            "UTF-8."
        ) from error
    refuse_marked(text, "become a task, a demonstration or a row", "the line")
    return text


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks as JSONL."""
    path.write_bytes(b"".join(task.to_json().encode() + b"\n" for task in tasks))
