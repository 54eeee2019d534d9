"""Sources of tasks to play: a benchmark split, or the tasks evolved in a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import gymnasium as gym
import numpy as np

from coevo_gym.core.benchmark import Benchmark, find_spec, find_task, get_benchmark
from coevo_gym.core.errors import ConfigError, TaskError
from coevo_gym.core.task import Task, parse_split
from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.held_out import native_tasks
from coevo_gym.runs.assembly import Assembly
from coevo_gym.runs.manifest import read_manifest
from coevo_gym.runs.tasks.listing import evolved_tasks, find_run_task, find_run_with_task
from coevo_gym.store.folder import RunFolder


@dataclass(frozen=True)
class PlaySource:
    """A source of playable tasks and their envs.

    Attributes:
        name: name of the source: the benchmark, or the run.
        benchmark: name of the benchmark.
        split: split of the tasks.
        find_tasks: function that returns the available tasks.
        find: function that returns a task by name or id, including tasks that are not listed.
        make_env: function that creates an env for these tasks.
    """

    name: str
    benchmark: str
    split: str
    find_tasks: Callable[[], Sequence[Task]]
    find: Callable[[str], Task]
    make_env: Callable[[], gym.Env[str, str]]

    @cached_property
    def tasks(self) -> Sequence[Task]:
        """Return the available tasks.

        Raises:
            ConfigError: if there are no tasks.
        """
        return self.find_tasks()

    @cached_property
    def by_id(self) -> Mapping[str, Task]:
        """Return all tasks, keyed by id."""
        return {task.id: task for task in self.tasks}

    @property
    def bench(self) -> Benchmark:
        """Return the benchmark."""
        return get_benchmark(self.benchmark)

    @property
    def title(self) -> str:
        """Return a one-line title for the benchmark."""
        spec = find_spec(self.benchmark)
        return spec.title if spec else self.benchmark

    def draw_task(self, seed: int | None) -> Task:
        """Return the task that a seed selects, or a random task if the seed is None."""
        return self.tasks[int(np.random.default_rng(seed).integers(len(self.tasks)))]

    def search_tasks(self, search: str) -> Sequence[Task]:
        """Return the tasks whose name or instruction contains every word of a search query."""
        words = search.casefold().split()
        texts = (f"{task.name}\n{task.instruction}".casefold() for task in self.tasks)
        candidates = zip(self.tasks, texts, strict=True)
        return [task for task, text in candidates if all(word in text for word in words)]


def benchmark_source(benchmark: str, split: str = "train") -> PlaySource:
    """Create a source for the native tasks in a benchmark split.

    Raises:
        TaskError: if the benchmark or the split does not exist.
    """
    name = get_benchmark(benchmark).name
    parse_split(split)

    def find(wanted: str) -> Task:
        try:
            return find_task(name, wanted)
        except TaskError:
            if run := find_run_with_task(name, wanted):
                raise TaskError(f"{wanted!r} was evolved in {run}. Pass --run {run}.") from None
            raise

    def make_env() -> gym.Env[str, str]:
        return gym.make(get_benchmark(name).env_id, split=split, disable_env_checker=True)

    return PlaySource(
        name=name,
        benchmark=name,
        split=split,
        find_tasks=lambda: native_tasks(name, parse_split(split), None),
        find=find,
        make_env=make_env,
    )


def run_source(folder: RunFolder) -> PlaySource:
    """Create a source for the tasks evolved in a run, with envs configured as in that run.

    Raises:
        StoreError: if the run cannot be read.
    """
    config = read_manifest(folder)[1]

    def find_tasks() -> Sequence[Task]:
        tasks = evolved_tasks(folder)
        if not tasks:
            raise ConfigError(f"{folder.path.name} has no evolved tasks yet.")
        return tasks

    return PlaySource(
        name=folder.path.name,
        benchmark=config.benchmark.name,
        split="train",
        find_tasks=find_tasks,
        find=lambda wanted: find_run_task(folder, wanted),
        make_env=lambda: cast(TaskEnv, Assembly(config).make_env()),
    )
