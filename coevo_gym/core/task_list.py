"""Tasks in a row that say what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex, overload

from coevo_gym.core.task import Task


class TaskList(tuple[Task, ...]):
    """A tuple of tasks whose ``repr`` is a line.

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
        """The task at a place, or a part of the list."""
        if isinstance(index, slice):
            return TaskList(super().__getitem__(index))
        return super().__getitem__(index)

    def __repr__(self) -> str:
        return described(self)


def described(tasks: Sequence[Task]) -> str:
    """How many tasks there are, of which benchmark and split, and the first and last by name."""
    if not tasks:
        return "<no tasks>"
    first, last = tasks[0], tasks[-1]
    if len(tasks) == 1:
        return f"<1 {first.split} task of {first.benchmark}: {first.name}>"
    kind = f"{len(tasks)} {first.split} tasks of {first.benchmark}"
    return f"<{kind}, from {first.name} to {last.name}>"
