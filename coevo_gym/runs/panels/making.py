"""Functions that make panels from a split or subset, a draw of its tasks, or a list of tasks.

Example:
    >>> from coevo_gym.runs.panels.making import make_panel
    >>> panel = make_panel("webshop", split="val", env={"subset": "builtin"}, size=3, seed=1)
    >>> panel.name, len(panel.tasks), panel.about
    ('webshop-val-3', 3, "3 of 401 tasks of split val: those with the smallest SHA-256 of '1 ID'.")
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from coevo_gym.core.benchmark import (
    Benchmark,
    data_versions_of,
    get_benchmark,
    panel_entry_of,
    panel_task_of,
)
from coevo_gym.core.errors import CoevoError, ConfigError, TaskError
from coevo_gym.core.panel import Panel
from coevo_gym.core.task import NATIVE_SPLITS, Split, Task, parse_split
from coevo_gym.core.task_file import decode_line, task_lines
from coevo_gym.envs.base import env_class_of
from coevo_gym.runs.panels.panel_files import report_hashing, tasks_of_env, without_solutions

_PASSED_OTHERWISE = {
    "split": "Pass --split instead.",
    "tasks": "Pass the tasks as ids or as a list.",
}
"""Arguments of envs that choose tasks, but are no part of a panel, and what to do."""


class ListLine(NamedTuple):
    """A line in a list of tasks.

    Attributes:
        text: a task's name or id, or a value that other code finds it by, such as a game's path, a
            goal's position or an official id.
        source: where the text is from, for messages.
    """

    text: str
    source: str


def read_list(file: Path) -> list[ListLine]:
    """Read a list with one task per line, such as a list from another code base.

    A line contains a text of :class:`ListLine`, or a JSON object with the key ``id``. Blank lines
    are allowed.

    Raises:
        TaskError: if the file cannot be read or is empty, or a line cannot be read; the message
            contains the line's number.
    """
    lines = []
    for number, line in task_lines(file):
        source = f"{file}, line {number}"
        try:
            text = decode_line(line).strip()
        except TaskError as error:
            raise TaskError(f"{source}: {error}") from error
        lines.append(ListLine(_parse_id(text, source) if text.startswith("{") else text, source))
    if not lines:
        raise TaskError(f"{file} contains no tasks. Write one task per line.")
    return lines


def _parse_id(text: str, source: str) -> str:
    """Return the id in a line that is a JSON object."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{source} is not valid JSON: {error}. Correct the line.") from error
    id = row.get("id")
    if not isinstance(id, str):
        raise TaskError(f"{source}: its key 'id' must be the name of a task, got {id!r}.")
    return id


def make_panel(
    benchmark: str | Benchmark,
    *,
    split: Split | str = Split.VAL,
    env: Mapping[str, Any] | None = None,
    where: Mapping[str, str] | None = None,
    lines: Sequence[ListLine] = (),
    size: int | None = None,
    seed: int = 0,
    name: str = "",
    about: str = "",
) -> Panel:
    """Make a panel of a benchmark's own tasks, from the installed data.

    The same arguments and data make the same panel, to the byte, on every machine. Of the subsets
    of the benchmark, the panel names the smallest one that has all its tasks, so that it does not
    depend on how the tasks were found.

    Args:
        benchmark: the benchmark, or its name.
        split: the split that all the tasks belong to.
        env: arguments of the env that choose its tasks, such as ``{"subset": "valid_seen"}``.
        where: only use tasks whose panel entries have these values, such as
            ``{"category": "base"}``.
        lines: the tasks in the panel's order; () for all tasks, in the benchmark's order.
        size: number of tasks to draw: those with the smallest SHA-256 of ``"SEED ID"``, in the
            order that they would have without a draw. None to use all tasks.
        seed: seed of the draw.
        name: name of the panel; "" for one that consists of benchmark, split and size.
        about: the rule by which the tasks were chosen; "" to describe these arguments.

    Raises:
        BenchmarkNotInstalled: if the benchmark is not installed.
        ConfigError: if an argument cannot be used, or there are not enough tasks.
        TaskError: if the benchmark, split or subset is unknown, or a listed task is unknown,
            ambiguous or listed twice.
    """
    benchmark = get_benchmark(benchmark) if isinstance(benchmark, str) else benchmark
    split, env, where = parse_split(split), dict(env or {}), dict(where or {})
    chosen_by = env_class_of(benchmark.name).task_arguments
    for argument in env:
        if argument in _PASSED_OTHERWISE:
            raise ConfigError(f"A panel has no {argument}. {_PASSED_OTHERWISE[argument]}")
        if argument not in chosen_by:
            raise ConfigError(
                f"A panel has no {argument}. It belongs to the evaluation, which defines how the "
                "tasks are played. These arguments of the env choose tasks: "
                f"{', '.join(sorted(chosen_by - _PASSED_OTHERWISE.keys()))}"
            )
    tasks = [*without_solutions(tasks_of_env(benchmark, split, env))]
    if where:
        tasks = [task for task in tasks if _matches(benchmark, task, where)]
        if not tasks:
            raise ConfigError(
                f"No {split} task of {benchmark.name} has {where} in its panel entry."
            )
    if lines:
        tasks = _resolve(benchmark, split, env, tasks, lines)
    total = len(tasks)
    if size is not None:
        if not 1 <= size <= total:
            raise ConfigError(f"A panel's size must be between 1 and {total}, got {size}.")
        tasks = draw_tasks(tasks, size, seed)
    entries = []
    for number, task in enumerate(tasks):
        report_hashing(number, len(tasks))
        entries.append(panel_task_of(benchmark, task))
    try:
        return Panel(
            name=name or f"{benchmark.name}-{split}-{len(tasks)}",
            about=about or _describe(split, where, bool(lines), size, total, seed),
            benchmark=benchmark.name,
            split=split,
            env=_name_smallest_subset(benchmark, split, env, {task.name for task in tasks}),
            data=data_versions_of(benchmark, tasks[0]),
            tasks=tuple(entries),
        )
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(f"The panel's {problem['loc'][0]}: {problem['msg']}.") from error


def draw_tasks(tasks: Sequence[Task], size: int, seed: int) -> list[Task]:
    """Return the tasks with the smallest SHA-256 of ``"SEED ID"``, in the given order.

    The draw of a task does not depend on the other tasks, and a larger draw contains a smaller one.
    """

    def rank(task: Task) -> str:
        return hashlib.sha256(f"{seed} {task.name}".encode()).hexdigest()

    names = {task.name for task in sorted(tasks, key=rank)[:size]}
    return [task for task in tasks if task.name in names]


def _describe(
    split: Split, where: Mapping[str, str], is_list: bool, size: int | None, total: int, seed: int
) -> str:
    tasks = f"{total} tasks of split {split}"
    tasks += "".join(f" with {key} {value}" for key, value in where.items())
    tasks += " in the order of a list" * is_list
    if size is None:
        return f"All {tasks}." if not is_list else f"{tasks}."
    return f"{size} of {tasks}: those with the smallest SHA-256 of '{seed} ID'."


def _matches(benchmark: Benchmark, task: Task, where: Mapping[str, str]) -> bool:
    """Return True if a task's panel entry has these values."""
    place = panel_entry_of(benchmark, task).place
    if unknown := where.keys() - place.keys():
        raise ConfigError(
            f"The panel entries of {benchmark.name} have no {min(unknown)!r}. They have: "
            f"{', '.join(sorted(place)) or 'nothing'}."
        )
    return all(str(place[key]) == value for key, value in where.items())


def _resolve(
    benchmark: Benchmark,
    split: Split,
    env: Mapping[str, Any],
    tasks: Sequence[Task],
    lines: Sequence[ListLine],
) -> list[Task]:
    """Return the listed tasks in the order of the list."""
    by_key = _index(benchmark, tasks)
    sources: dict[str, str] = {}
    members: list[Task] = []
    for text, source in lines:
        matches = _look_up(by_key, text)
        if not matches:
            raise TaskError(
                f"{source}: {text[:200]!r} is none of the {len(tasks)} chosen {split} tasks of "
                f"{benchmark.name}. {_look_elsewhere(benchmark, split, env, text)}"
            )
        if len(matches) > 1:
            first, second, *_ = (task.name for task in matches)
            raise TaskError(
                f"{source}: {text[:200]!r} matches {len(matches)} tasks, such as {first} and "
                f"{second}. Use task ids, or restrict the tasks with --subset or --where."
            )
        name = matches[0].name
        if name in sources:
            raise TaskError(
                f"{source} repeats the task {name}, which is already listed in {sources[name]}. "
                "Remove one of them."
            )
        sources[name] = source
        members.append(matches[0])
    return members


def _index(benchmark: Benchmark, tasks: Sequence[Task]) -> dict[str, list[Task]]:
    """Map each text that may appear in a list to the tasks that it matches."""
    by_key: defaultdict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        for key in _keys(benchmark, task):
            by_key[key].append(task)
    return by_key


def _keys(benchmark: Benchmark, task: Task) -> set[str]:
    """Return the texts by which a list can name a task: its names, and the values in its place.

    Paths also count without their first folder.
    """
    keys = {task.name, task.id, task.name.partition("/")[2]}
    for value in map(str, panel_entry_of(benchmark, task).place.values()):
        keys |= {value, value.partition("/")[2] or value}
    return keys


def _look_up(by_key: Mapping[str, list[Task]], text: str) -> list[Task]:
    """Return the tasks that match a text. A path may have more folders in front."""
    for suffix in _suffixes(text):
        if matches := by_key.get(suffix):
            return matches
    return []


def _suffixes(text: str) -> Iterator[str]:
    """Yield a text and, if it is a path, its shorter endings with at least two parts."""
    yield text
    while (text := text.partition("/")[2]).count("/") >= 1:
        yield text


def _look_elsewhere(benchmark: Benchmark, split: Split, env: Mapping[str, Any], text: str) -> str:
    """Return advice for a text that matches none of the chosen tasks."""
    splits = [split, *(other for other in NATIVE_SPLITS if other is not split)]
    for subset in (None, *benchmark.subsets):
        for other in splits:
            inner = {**env, **({"subset": subset} if subset else {})}
            try:
                tasks = [*without_solutions(tasks_of_env(benchmark, other, inner))]
            except CoevoError:
                continue  # this subset has no task in this split, or is not installed
            if _look_up(_index(benchmark, tasks), text):
                option = f" --subset {subset}" if subset else ""
                return f"It is elsewhere: pass --split {other}{option}."
    return f"Correct it; `coevo tasks {benchmark.name} --split {split}` lists names of tasks."


def _name_smallest_subset(
    benchmark: Benchmark, split: Split, env: Mapping[str, Any], names: set[str]
) -> dict[str, Any]:
    """Return an env's arguments, narrowed to the smallest subset that contains all these tasks."""
    subsets: list[tuple[int, str, Sequence[Task]]] = []
    for subset in benchmark.subsets:
        try:
            tasks = tasks_of_env(benchmark, split, {**env, "subset": subset})
        except CoevoError:
            continue  # this subset has no task in this split, or is not installed
        subsets.append((len(tasks), subset, tasks))
    # Of two with the same tasks, the last one counts: the built-in one, which is always there.
    for n, subset, tasks in sorted(reversed(subsets), key=itemgetter(0)):
        if n >= len(names) and names <= {task.name for task in without_solutions(tasks)}:
            return {**env, "subset": subset}
    return dict(env)
