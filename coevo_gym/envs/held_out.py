"""Training scenarios held out as a large test set, in addition to the official splits.

A fixed hash selects the scenarios, so the selection is the same in every run and process, for any
seed. The tasks of these scenarios have the split ``held_out``. Any code that refuses validation
tasks also refuses held-out tasks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any, cast

from coevo_gym.core.benchmark import Benchmark, get_benchmark, scenarios_of
from coevo_gym.core.errors import ConfigError, TaskError
from coevo_gym.core.task import Split, Task, canonical_json, fold_strings, parse_split
from coevo_gym.core.task_file import TaskList

_REMEMBERED = 4096
"""Maximum number of tasks whose comparison with held-out tasks is cached."""


def is_held_out(benchmark: str, scenario: str, share: float) -> bool:
    """Return True if a training scenario is held out.

    Each scenario is selected independently, so the held-out share is about ``share``, which is in
    [0, 1). A larger share includes every scenario of a smaller one.

    Example:
        >>> [is_held_out("alfworld", f"FloorPlan{n}", 0.2) for n in (1, 2, 3)]
        [False, True, True]
    """
    hashed = hashlib.sha256(f"held out: {benchmark}/{scenario}".encode()).digest()
    return int.from_bytes(hashed[:8], "big") < share * 2**64


class HoldingOut:
    """A benchmark that holds out some of its training scenarios. All else is unchanged.

    ``share`` is the share of its training scenarios to hold out, in (0, 1).
    """

    def __init__(self, benchmark: Benchmark, share: float) -> None:
        self._inner, self._share = benchmark, share
        self._has_held_out_content = lru_cache(_REMEMBERED)(self._is_held_out_copy)
        self._lists: dict[tuple[object, ...], Sequence[Task]] = {}

    def __getattr__(self, name: str) -> Any:
        # Forwarded, because only some benchmarks have the members of ``Proposable``.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._inner, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return benchmark_of, (self._inner.name, self._share)

    def tasks(self, split: Split | str, subset: str | None = None) -> Sequence[Task]:
        """Return the benchmark's own tasks in a split. Held-out tasks have the split ``held_out``.

        Raises:
            TaskError: if the split has no tasks.
        """
        split = parse_split(split)
        if split not in (Split.TRAIN, Split.HELD_OUT):
            return self._inner.tasks(split, subset)
        train = self._inner.tasks(Split.TRAIN, subset)
        # The key includes the data, because the installed data may change between two envs.
        key = (split, subset, len(train), train[0].id, train[-1].id)
        if key not in self._lists:
            self._lists[key] = TaskList(self._tasks_of_split(train, split))
        if not self._lists[key]:
            raise TaskError(
                f"With hold_out={self._share}, {self._inner.name} has no {split} tasks in subset "
                f"{subset!r}. Choose another value of hold_out."
            )
        return self._lists[key]

    def _tasks_of_split(self, train: Sequence[Task], split: Split) -> Iterator[Task]:
        for task in train:
            if self._is_held_out(task):
                if split is Split.HELD_OUT:
                    yield self.relabel(task)
            elif split is Split.TRAIN and not self._has_held_out_content(task):
                yield task

    def split_of(self, scenario: str) -> Split:
        """Return the split of a scenario, even if the benchmark has no tasks for the scenario."""
        side = self._inner.split_of(scenario)
        held_out = is_held_out(self._inner.name, scenario, self._share)
        return Split.HELD_OUT if side is Split.TRAIN and held_out else side

    def side_of(self, task: Task) -> Split:
        """Determine a task's split from its scenario and content, ignoring its ``split`` field.

        A copy of a held-out native task is recognised by its world and verifier, even if its
        scenario or wording differs; and by the scenarios that its content belongs to, if the
        benchmark knows them (:func:`~coevo_gym.core.benchmark.scenarios_of`).
        """
        if self._has_held_out_content(task):
            return Split.HELD_OUT
        side = self._inner.side_of(task)
        return Split.HELD_OUT if side is Split.TRAIN and self._is_held_out(task) else side

    def relabel(self, task: Task) -> Task:
        """Return the task, with its split set to ``held_out`` if its scenario is held out."""
        if task.split is not Split.TRAIN or not self._is_held_out(task):
            return task
        return task.model_copy(update={"split": Split.HELD_OUT})

    def _is_held_out(self, task: Task) -> bool:
        scenarios = scenarios_of(self._inner, task)
        return any(is_held_out(self._inner.name, one, self._share) for one in scenarios)

    def _is_held_out_copy(self, task: Task) -> bool:
        """Return True if some held-out task has the same world and verifier as this task."""
        return _content_hash(task) in self._held_out_hashes

    @cached_property
    def _held_out_hashes(self) -> frozenset[str]:
        contents = set[str]()
        for subset in (None, *self._inner.subsets):
            try:
                tasks = self._inner.tasks(Split.TRAIN, subset)
            except TaskError:
                continue  # this subset has no training tasks
            contents.update(_content_hash(task) for task in tasks if self._is_held_out(task))
        return frozenset(contents)


def _content_hash(task: Task) -> str:
    parts = [task.world.model_dump(mode="json"), task.verifier.model_dump(mode="json")]
    return hashlib.sha256(canonical_json(fold_strings(parts)).encode()).hexdigest()


@lru_cache(maxsize=16)
def _with_held_out(name: str, share: float) -> Benchmark:
    return cast(Benchmark, HoldingOut(get_benchmark(name), share))


def benchmark_of(name: str, hold_out: float = 0.0) -> Benchmark:
    """Return a benchmark by name, with a share of its training scenarios held out.

    ``hold_out`` is in [0, 1); 0 returns the unmodified benchmark.

    Raises:
        ConfigError: if the share is out of range.
        TaskError: if no benchmark of that name is registered.
    """
    if not 0 <= hold_out < 1:
        raise ConfigError(f"hold_out must be in [0, 1), got {hold_out!r}")
    return _with_held_out(name, float(hold_out)) if hold_out else get_benchmark(name)


def native_tasks(
    name: str, split: Split, subset: str | None = None, *, hold_out: float = 0.0
) -> Sequence[Task]:
    """Return a benchmark's own tasks in a split. For ``hold_out``, see :func:`benchmark_of`.

    Raises:
        ConfigError: if held-out tasks are requested but ``hold_out`` is 0.
        TaskError: if the benchmark, split or subset is unknown.
    """
    if split is Split.HELD_OUT and not hold_out:
        raise ConfigError(
            "The split 'held_out' is empty because hold_out is 0. Set hold_out to the share of "
            "training scenarios to hold out. For a run, set benchmark.hold_out, for example to 0.2."
        )
    return benchmark_of(name, hold_out).tasks(split, subset)
