"""Short tags that describe a task, so that tasks can be counted by topic.

A tag has the form ``kind:value``, such as ``scene:FloorPlan12`` or ``goal:heat``. Tags are computed
from a task's scenario, world and instruction only. They never depend on its verifier or solution,
so an explorer may see them, and a draft has the same tags as the task built from it. An open task
has only the tags of its scenario.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import OPEN, Task

TAG = re.compile(r"[a-z][a-z0-9_]*:\S(?:.*\S)?")
"""The format of a tag: a kind, a colon, and a value without leading or trailing spaces."""


def tags_from(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the tags for (kind, value) pairs, sorted and without duplicates.

    Runs of spaces in a value become one space; empty values are dropped.

    Example:
        >>> tags_from([("object", "mug"), ("goal", "heat"), ("object", "mug"), ("lamp", "")])
        ('goal:heat', 'object:mug')
    """
    cleaned = ((kind, " ".join(value.split())) for kind, value in pairs)
    return tuple(sorted({f"{kind}:{value}" for kind, value in cleaned if value}))


def kind_of_tag(tag: str) -> str:
    """Return the kind in a ``kind:value`` tag.

    Example:
        >>> kind_of_tag("scene:FloorPlan12")
        'scene'
    """
    return tag.partition(":")[0]


def value_of_tag(tag: str) -> str:
    """Return the value in a ``kind:value`` tag.

    Example:
        >>> value_of_tag("scene:builtin/FloorPlan7")
        'builtin/FloorPlan7'
    """
    return tag.partition(":")[2]


def asks_nothing(task: Task | Draft) -> bool:
    """Return True if the task has no goal and is only for exploration."""
    return isinstance(task, Task) and task.origin == OPEN


def scenario_tags(task: Task | Draft) -> tuple[str, ...]:
    """Return a task's default tags: a single tag that names its scenario."""
    return tags_from([("scenario", task.scenario)])


def tags_of(task: Task | Draft) -> tuple[str, ...]:
    """Return the tags that a benchmark assigns to a task or task draft.

    A benchmark without a ``tags`` method gets :func:`scenario_tags`.
    """
    benchmark = get_benchmark(task.benchmark)
    return benchmark.tags(task) if hasattr(benchmark, "tags") else scenario_tags(task)
