"""Panel files: the shipped ones and the user's own, and the tasks that they list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import gymnasium as gym

from coevo_gym.core.benchmark import (
    Benchmark,
    data_versions_of,
    find_spec,
    get_benchmark,
    panel_task_of,
)
from coevo_gym.core.errors import BenchmarkNotInstalled, ConfigError, TaskError
from coevo_gym.core.panel import Panel, changed_parts, is_panel_file
from coevo_gym.core.reading import read_file
from coevo_gym.core.registry import did_you_mean
from coevo_gym.core.task import Split, Task
from coevo_gym.core.waiting import report_progress
from coevo_gym.envs.base import TaskEnv, env_class_of

SHIPPED = Path(__file__).with_name("lists")
"""The folder with the shipped panels."""
_REPORTED = 500
"""Number of tasks between two reports of progress."""
_SHOWN = 16
"""Maximum number of characters of a version or hash in messages."""


EVALUATED = "evaluation"
"""Name of a run's copy of the panel in ``evaluation.panel``."""


def is_panel(entry: str) -> bool:
    """Return True if a task set in ``evaluation.final`` is a panel."""
    return is_panel_file(entry) or entry in shipped_names()


def shipped_names() -> list[str]:
    """Return the names of the shipped panels, sorted."""
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


def find_panel(name_or_file: str) -> Panel:
    """Read a shipped panel by name, or a panel from a file.

    Raises:
        ConfigError: if there is no such panel, or it was edited.
    """
    path = Path(name_or_file).expanduser()
    if name_or_file in (names := shipped_names()):
        path = SHIPPED / f"{name_or_file}.json"
    elif not path.is_file():
        raise ConfigError(
            f"There is no panel or file {name_or_file!r}. {did_you_mean(name_or_file, names)}"
            "`coevo panel list` lists the shipped panels."
        )
    try:
        text = read_file(path)
    except OSError as error:
        raise ConfigError(f"The panel {path} cannot be read: {error.strerror}.") from error
    return Panel.from_json(text, str(path))


class TaskDifference(NamedTuple):
    """A task that differs between a panel and the installed data.

    Attributes:
        id: name of the task.
        parts: the parts of its content that differ, or ``("place",)``; () if there is no such task.
    """

    id: str
    parts: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.parts:
            return "is missing"
        return f"has a different {' and '.join(self.parts)}"


class DataDifference(NamedTuple):
    """A data version or hash that differs between a panel and the installed data.

    Attributes:
        name: name of the version or hash.
        installed: the installed one; "" if there is none.
        wanted: that of the panel; "" if there is none.
    """

    name: str
    installed: str
    wanted: str

    def __str__(self) -> str:
        here, there = (value[:_SHOWN] or "missing" for value in (self.installed, self.wanted))
        return f"{self.name} is {here} here and {there} in the panel"


@dataclass(frozen=True)
class PanelCheck:
    """The comparison of a panel with the installed data.

    Attributes:
        panel: the panel.
        candidates: all tasks of the panel's split in its env.
        places: index of each of the panel's tasks in ``candidates``, by id.
        differences: the tasks that differ, in the panel's order.
        data: versions and hashes of the data that differ. If no task differs, the tasks are the
            same, but pages or scores may not be.
    """

    panel: Panel
    candidates: Sequence[Task]
    places: Mapping[str, int]
    differences: tuple[TaskDifference, ...]
    data: tuple[DataDifference, ...]

    def require_tasks(self) -> tuple[Task, ...]:
        """Return the tasks in the panel's order.

        Raises:
            ConfigError: if a task differs.
        """
        for difference in self.differences:
            raise ConfigError(
                f"The task {difference.id} of the panel {self.panel.name} {difference} in the "
                f"installed data of {self.panel.benchmark}. {_advise(self.panel, self.data)}"
            )
        return tuple(self.candidates[self.places[entry.id]] for entry in self.panel.tasks)


def check_panel(panel: Panel, benchmark: Benchmark | None = None) -> PanelCheck:
    """Compare a panel with the installed data.

    Args:
        panel: the panel.
        benchmark: the panel's benchmark; None to find it by name.

    Raises:
        BenchmarkNotInstalled: if there is no such benchmark, or it has no task of the panel.
    """
    if benchmark is None and find_spec(panel.benchmark) is None:
        raise BenchmarkNotInstalled(
            f"The panel {panel.name} is for the benchmark {panel.benchmark!r}, which is not "
            "installed. Install the package that provides it, or, for a panel of your own rows, "
            "pass --rows FILE.jsonl and --verify FILE.py:FUNCTION."
        )
    benchmark = benchmark or get_benchmark(panel.benchmark)
    try:
        candidates = tasks_of_env(benchmark, panel.split, panel.env)
    except TaskError as error:
        raise BenchmarkNotInstalled(
            f"The data for panel {panel.name} is not installed. {error} {_advise(panel)}"
        ) from error
    wanted = {entry.id for entry in panel.tasks}
    places, tasks = dict[str, int](), dict[str, Task]()
    for place, task in enumerate(without_solutions(candidates)):
        if task.name in wanted:
            places[task.name], tasks[task.name] = place, task
    versions = data_versions_of(benchmark, next(iter(tasks.values()), candidates[0]))
    data = tuple(
        DataDifference(name, versions.get(name, ""), panel.data.get(name, ""))
        for name in sorted({*panel.data, *versions})
        if versions.get(name) != panel.data.get(name)
    )
    if not tasks:
        raise BenchmarkNotInstalled(
            f"The installed data of {panel.benchmark} has none of the panel {panel.name}'s tasks. "
            f"{_advise(panel, data)}"
        )
    differences = tuple(_compare(benchmark, panel, tasks))
    return PanelCheck(panel, candidates, places, differences, data)


def _compare(
    benchmark: Benchmark, panel: Panel, tasks: Mapping[str, Task]
) -> Iterator[TaskDifference]:
    for number, entry in enumerate(panel.tasks):
        report_hashing(number, len(panel.tasks))
        task = tasks.get(entry.id)
        if task is None:
            yield TaskDifference(entry.id)
        elif (actual := panel_task_of(benchmark, task)) != entry:
            yield TaskDifference(entry.id, tuple(changed_parts(entry, actual)) or ("place",))


def report_hashing(done: int, total: int) -> None:
    """Report progress every so often while a panel's tasks are hashed."""
    if done and done % _REPORTED == 0:
        report_progress("hashing tasks", done, total)


def _advise(panel: Panel, data: Sequence[DataDifference] = ()) -> str:
    """Return a message that explains how the data differs and how to fix it."""
    spec = find_spec(panel.benchmark)
    command = f" (see `coevo install {panel.benchmark} --help`)" if spec and spec.setup else ""
    advice = f"Install the data that the panel was made from{command}."
    return f"Data differs: {'; '.join(map(str, data))}. {advice}" if data else advice


def tasks_of_panel(panel: Panel, benchmark: Benchmark | None = None) -> tuple[Task, ...]:
    """Return the tasks of a panel in its order, after checking that their content is the same.

    Args:
        panel: the panel.
        benchmark: the panel's benchmark; None to find it by name.

    Raises:
        BenchmarkNotInstalled: if the panel's data is not installed.
        ConfigError: if the installed data has no such task, or its content differs.
    """
    return check_panel(panel, benchmark).require_tasks()


def tasks_of_env(benchmark: Benchmark, split: Split, env: Mapping[str, Any]) -> Sequence[Task]:
    """Return all tasks of a split in a benchmark's env.

    Raises:
        BenchmarkNotInstalled: if the benchmark is not installed.
        ConfigError: if the env does not have these arguments.
        TaskError: if the env has no tasks.
    """
    options = {"disable_env_checker": True, "split": str(split), **env}
    try:
        instance = gym.make(benchmark.env_id, **options)
    except TypeError as error:
        raise ConfigError(f"{benchmark.env_id} cannot be made with {dict(env)}: {error}") from error
    with closing(instance):
        return cast(TaskEnv, instance.unwrapped).tasks


def without_solutions(tasks: Sequence[Task]) -> Iterable[Task]:
    """Return tasks, leaving out solutions that would take long to find."""
    make = getattr(tasks, "without_solutions", None)
    return tasks if make is None else cast(Iterable[Task], make())


def make_automatic_panel(
    tasks: Sequence[Task], benchmark: Benchmark, env: Mapping[str, Any]
) -> Panel:
    """Create a panel for an evaluation that was not given one.

    Args:
        tasks: the tasks that the evaluation plays, all of one split.
        benchmark: their benchmark.
        env: arguments of the env that has these tasks. Those that are None, and those that say how
            tasks are played, are left out.
    """
    split, chosen_by = tasks[0].split, env_class_of(benchmark.name).task_arguments
    return Panel(
        name=f"auto-{benchmark.name}-{split}".replace("_", "-"),
        about="The tasks that an evaluation without a panel has played.",
        benchmark=benchmark.name,
        split=split,
        env={name: env[name] for name in env if name in chosen_by and env[name] is not None},
        data=data_versions_of(benchmark, tasks[0]),
        tasks=tuple(panel_task_of(benchmark, task) for task in tasks),
    )
