"""Task selection for envs: the tasks of a split or a list, and the task that a reset picks.

Every task is checked before an episode begins. It must belong to the env's benchmark, and a task
that claims to be a training task must not be a copy of a validation or test task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym

from coevo_gym.core.benchmark import Benchmark, check_claim, find_task
from coevo_gym.core.errors import ConfigError, TaskError
from coevo_gym.core.task import Split, Task, parse_split
from coevo_gym.core.task_file import read_tasks
from coevo_gym.envs.checks import names_of
from coevo_gym.envs.held_out import HoldingOut, benchmark_of, native_tasks


class SelectingEnv(gym.Env[str, str]):
    """The part of an env that selects its tasks; see :class:`~coevo_gym.envs.base.TaskEnv`.

    A benchmark whose tasks need other rules overrides its methods.
    """

    benchmark: ClassVar[str]

    def __init__(
        self,
        split: str,
        subset: str | None,
        tasks: Sequence[str] | str | None,
        hold_out: float = 0.0,
    ) -> None:
        self.split, self.hold_out = parse_split(split), hold_out
        _ = self.practised  # raises if the share is out of range
        self._tasks = self._select(subset, tasks)

    @property
    def tasks(self) -> Sequence[Task]:
        """The tasks that ``reset`` picks from if its options specify none."""
        return self._tasks

    @property
    def practised(self) -> Benchmark:
        """The env's benchmark, with the env's share of scenarios held out."""
        return benchmark_of(self.benchmark, self.hold_out)

    def _select(self, subset: str | None, tasks: Sequence[str] | str | None) -> Sequence[Task]:
        """Return the tasks that ``reset`` picks from."""
        if tasks is None:
            return self._native(subset)
        if isinstance(tasks, str):
            chosen: Sequence[Task] = read_tasks(Path(tasks))
        else:
            chosen = tuple(map(self._find, names_of(tasks)))
        for task in chosen:
            self._check(task.require_asked("list"))
            if task.split is not self.split:
                raise TaskError(
                    f"{task.name} is a {task.split} task, but this env was made with "
                    f"split={str(self.split)!r}. Pass split={str(task.split)!r}."
                )
        if not chosen:
            raise TaskError(f"tasks={tasks!r} contains no tasks. Name at least one.")
        return chosen

    def _native(self, subset: str | None) -> Sequence[Task]:
        """Return the native tasks of the env's split."""
        return native_tasks(self.benchmark, self.split, subset, hold_out=self.hold_out)

    def _find(self, name_or_id: str) -> Task:
        """Return the native task with this name or id."""
        found, practised = find_task(self.benchmark, name_or_id), self.practised
        return practised.relabelled(found) if isinstance(practised, HoldingOut) else found

    def _check(self, task: Task) -> None:
        """Raise an error if this env must not run a task."""
        if task.benchmark != self.benchmark:
            raise TaskError(
                f"{task.name} belongs to {task.benchmark}, but this env runs {self.benchmark}. "
                f"Make an env of {task.benchmark} instead."
            )
        if task.split is Split.TRAIN:  # other splits claim nothing that needs a check
            try:
                side = self._side_of(task)
            except TaskError as error:
                raise TaskError(f"{task.name} cannot be run: {error}") from error
            check_claim(task, side, "play")

    def _side_of(self, task: Task) -> Split:
        """Return the split of a task by its content, whatever split it claims."""
        return self.practised.side_of(task)

    def _choose(self, options: Mapping[str, Any]) -> Task:
        """Return the task that the reset options specify, or else a randomly drawn task."""
        unknown = set(options) - {"task", "task_id"}
        if unknown or len(options) > 1:
            raise ConfigError(
                'reset takes options={"task": Task} or {"task_id": id or name}, '
                f"actual keys: {sorted(options)}"
            )
        if "task" in options:
            task = options["task"]
            if not isinstance(task, Task):
                raise TaskError(
                    f'options["task"] must be a Task, actual: {type(task).__name__}. '
                    'Pass a name or id as options={"task_id": …}.'
                )
            return task
        if "task_id" in options:
            wanted = options["task_id"]
            own = next((t for t in self._tasks if wanted in (t.id, t.name)), None)
            return own or self._find(wanted)
        return self._tasks[int(self.np_random.integers(len(self._tasks)))]
