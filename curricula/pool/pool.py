"""The pool: the evolving set of training tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from coevo_gym.core.errors import SplitLeakError, TaskError
from coevo_gym.core.task import Split, Task


def require_train(task: Task, action: str) -> Task:
    """Return ``task`` if it is a training task.

    Args:
        task: the task.
        action: what was about to be done with it, for the message ("add to the pool").

    Raises:
        SplitLeakError: if it belongs to validation or test. Nothing turns this off.
    """
    if task.split is not Split.TRAIN:
        raise SplitLeakError(
            f"Refusing to {action}: {task.name} is a {task.split} task, and only training tasks "
            "may be practised, explored from or drafted from."
        )
    return task


def require_practised(task: Task, action: str) -> Task:
    """Return ``task`` if it is a training task in which something is asked for.

    Args:
        task: the task.
        action: as in :func:`require_train`.

    Raises:
        SplitLeakError: if it belongs to validation or test.
        TaskError: if it is an open task: those are explored, and never practised.
    """
    return require_train(task, action).require_asked(action)


class TaskPool:
    """Training tasks in the order they came, each once.

    Tasks are never changed or removed, so an index into the pool stays valid.

    Args:
        tasks: what it starts with.

    Raises:
        SplitLeakError: if one of them is not a training task.
        TaskError: if one of them is an open task.

    Example:
        >>> pool = TaskPool()
        >>> len(pool), list(pool)
        (0, [])
    """

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self._tasks: dict[str, Task] = {}
        self._order: list[Task] = []
        self.extend(tasks)

    def add(self, task: Task) -> bool:
        """Append a task.

        Returns:
            False if a task of the same content is there already; that one stays as it is.

        Raises:
            SplitLeakError: if it is not a training task.
            TaskError: if it is an open task.
        """
        return bool(self.extend([task]))

    def extend(self, tasks: Iterable[Task]) -> tuple[Task, ...]:
        """Append tasks, all or none.

        Returns:
            Those that were new.

        Raises:
            SplitLeakError: if one is not a training task; the pool is unchanged then.
            TaskError: if one is an open task; the pool is unchanged then.
        """
        offered = [require_practised(task, "add to the pool") for task in tasks]
        added = []
        for task in offered:
            if task.id not in self._tasks:
                self._tasks[task.id] = task
                added.append(task)
        self._order += added
        return tuple(added)

    @property
    def tasks(self) -> Sequence[Task]:
        """The tasks in order; grows with the pool, so copy it to keep it."""
        return self._order

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._order)

    def __contains__(self, task: Task | str) -> bool:
        return (task.id if isinstance(task, Task) else task) in self._tasks

    def __getitem__(self, key: int | str) -> Task:
        """The task at a position, or with an id.

        Raises:
            TaskError: if no task has that id.
            IndexError: if no task is at that position.
        """
        if isinstance(key, str):
            if key not in self._tasks:
                raise TaskError(f"No task in the pool has the id {key!r}.")
            return self._tasks[key]
        return self._order[key]

    def state_dict(self) -> dict[str, Any]:
        """The tasks, in order, each as its own JSON text."""
        return {"tasks": [task.to_json() for task in self._order]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the tasks with those of :meth:`state_dict`."""
        tasks = [Task.from_json(text) for text in state["tasks"]]
        self._tasks, self._order = {}, []
        self.extend(tasks)
