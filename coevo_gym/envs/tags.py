"""Tags: what a task is about, as short words that can be counted.

A tag is ``kind:value``, such as ``scene:FloorPlan12`` or ``goal:heat``. Tags come from a task's
scenario, its world and what is said in it, and from nothing else: no verifier and no solution is
read, so they can be told to whoever explores, and a draft has the same tags as the task that is
built from it. An open task has those of its place alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import OPEN, Task

TAG = re.compile(r"[a-z][a-z0-9_]*:\S(?:.*\S)?")
"""How a tag is written: a kind, a colon, and a value without spaces at its ends."""


def tags_from(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Tags in order, each once.

    Args:
        pairs: kind and value of each. Spaces in values are made one; empty values are left out.

    Example:
        >>> tags_from([("object", "mug"), ("goal", "heat"), ("object", "mug"), ("lamp", "")])
        ('goal:heat', 'object:mug')
    """
    cleaned = ((kind, " ".join(value.split())) for kind, value in pairs)
    return tuple(sorted({f"{kind}:{value}" for kind, value in cleaned if value}))


def kind_of_tag(tag: str) -> str:
    """The kind of a tag.

    Example:
        >>> kind_of_tag("scene:FloorPlan12")
        'scene'
    """
    return tag.partition(":")[0]


def value_of_tag(tag: str) -> str:
    """The value of a tag.

    Example:
        >>> value_of_tag("scene:builtin/FloorPlan7")
        'builtin/FloorPlan7'
    """
    return tag.partition(":")[2]


def asks_nothing(task: Task | Draft) -> bool:
    """Whether it is an open task, which has the tags of its place alone."""
    return isinstance(task, Task) and task.origin == OPEN


def scenario_tags(task: Task | Draft) -> tuple[str, ...]:
    """The tags of a benchmark that says no more: the scenario."""
    return tags_from([("scenario", task.scenario)])


def tags_of(task: Task | Draft) -> tuple[str, ...]:
    """The tags of a task or a draft, by its benchmark.

    One from before there were tags gives its scenario.
    """
    benchmark = get_benchmark(task.benchmark)
    return benchmark.tags(task) if hasattr(benchmark, "tags") else scenario_tags(task)
