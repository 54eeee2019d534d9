"""Lineage of tasks: the graph around one task, back to its origins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from coevo_gym.web.view.shapes.tasks import Lineage, LineageEdge, LineageNode

MOST_NODES = 200
"""Maximum number of nodes in a graph; further descendants are only counted."""

Rows = Mapping[str, Mapping[str, Any]]


class Family:
    """Parents and children of all tasks of a run.

    Args:
        lineage: the arm, the round, the task, and a parent or "", for each task that joined a pool.

    Attributes:
        parents: ids of the parents, for each task made by a round.
        children: ids of the children, for each task.
        arms: arms whose pools contain the task, for each task.
        found_by: the arm and the round that first found the task, for each task.
    """

    def __init__(self, lineage: Iterable[Sequence[str]]) -> None:
        parents: dict[str, dict[str, None]] = {}
        children: dict[str, dict[str, None]] = {}
        arms: dict[str, dict[str, None]] = {}
        self.found_by: dict[str, tuple[str, str]] = {}
        for arm, round_id, task, parent in lineage:
            arms.setdefault(task, {})[arm] = None
            self.found_by.setdefault(task, (arm, round_id))
            of_task = parents.setdefault(task, {})
            if parent and parent != task:
                of_task[parent] = None
                children.setdefault(parent, {})[task] = None
        self.parents = {task: tuple(found) for task, found in parents.items()}
        self.children = {task: tuple(found) for task, found in children.items()}
        self.arms = {task: tuple(found) for task, found in arms.items()}
        self._generations: dict[str, int] = {}

    def generation(self, task: str) -> int:
        """Return 0 for a task that no round made; for others, one more than their parents."""
        waiting = [task]
        while waiting:
            here = waiting[-1]
            if here in self._generations:
                waiting.pop()
                continue
            parents = self.parents.get(here)
            if parents is None:
                self._generations[here] = 0
                continue
            unknown = [p for p in parents if p not in self._generations and p not in waiting]
            if unknown:
                waiting += unknown
                continue
            self._generations[here] = 1 + max(
                (self._generations.get(parent, 0) for parent in parents), default=0
            )
        return self._generations[task]


def lineage_of(id: str, rows: Rows) -> Lineage:
    """Return the ancestors and descendants of a task.

    Args:
        id: id of the task.
        rows: the rows of all tasks of the run, by id.
    """
    children: dict[str, list[str]] = {}
    for row in rows.values():
        for parent in row["parents"]:
            children.setdefault(parent, []).append(row["id"])

    def parents_of(task: str) -> Sequence[str]:
        row = rows.get(task)
        return row["parents"] if row else ()

    up = dict(_around(id, parents_of))
    down = {task: -n for task, n in _around(id, lambda task: children.get(task, ()))}
    room = max(0, MOST_NODES - len(up))
    shown = {**dict(list(down.items())[: room + 1]), **up}
    edges = [
        LineageEdge(parent=parent, child=task)
        for task in shown
        for parent in parents_of(task)
        if parent in shown
    ]
    return Lineage(
        nodes=tuple(_node(task, generation, rows.get(task)) for task, generation in shown.items()),
        edges=tuple(edges),
        more=max(0, len(down) - 1 - room),
    )


def _around(start: str, next_to: Any) -> Iterator[tuple[str, int]]:
    """Yield a task and all tasks reachable from it, each once, with the distance."""
    seen, here, distance = {start}, [start], 0
    while here:
        yield from ((task, distance) for task in here)
        found = dict.fromkeys(other for task in here for other in next_to(task))
        here = [task for task in found if task not in seen]
        seen.update(here)
        distance += 1


def _node(id: str, generation: int, row: Mapping[str, Any] | None) -> LineageNode:
    if row is None:
        return LineageNode(
            id=id, name="", instruction="", origin="", generation=generation, known=False
        )
    return LineageNode(
        id=id,
        name=row["name"],
        instruction=row["instruction"],
        origin=row["origin"],
        generation=generation,
        first=row["_first"],
        round=row["round"],
        arms=row["arms"],
        signal=row["signal"],
        success=row["success"],
    )
