"""Native tasks: three per room, split by room."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from coevo_gym.core.errors import TaskError
from coevo_gym.core.task import Split, Task, first_non_train

from .world import NewbenchVerifier, NewbenchWorld

N_ROOMS = 60
TASKS_A_ROOM = 3
BOXES = ("red", "green", "blue", "white", "black", "amber")
THINGS = ("coin", "key", "ring", "stamp", "button", "marble", "feather", "shell", "candle", "spoon")


def split_of(scenario: str) -> Split:
    """Return a room's split: of every five rooms, three are train, one is val and one is test.

    Raises:
        TaskError: if there is no such room.
    """
    if scenario not in _rooms():
        raise TaskError(f"newbench has no scenario {scenario!r}, only room-0 to -{N_ROOMS - 1}.")
    place = int(scenario.removeprefix("room-")) % 5
    return Split.VAL if place == 3 else Split.TEST if place == 4 else Split.TRAIN


def side_of(task: Task) -> Split:
    """Return the split that a task belongs to according to its content, not its label.

    A copy of a held-out room under another name is still a held-out room.
    """
    return first_non_train(*map(split_of, (task.scenario, *scenarios_of(task))))


def scenarios_of(task: Task) -> tuple[str, ...]:
    """Return the rooms that a task's content belongs to, whatever its own scenario says."""
    return tuple(room for room, world in _rooms().items() if world == task.world)


def native_tasks(split: Split, subset: str | None = None) -> Sequence[Task]:
    """Return the native tasks of a split, always in the same order.

    Raises:
        TaskError: if a subset is given, because there are no subsets.
    """
    if subset is not None:
        raise TaskError(f"newbench has no subset {subset!r}.")
    return _native_tasks(split)


def instruction_of(thing: str, box: str) -> str:
    """Return the instruction for the agent."""
    return f"Put the {thing} into the {box} box, then say that you are done."


@lru_cache(maxsize=3)
def _native_tasks(split: Split) -> tuple[Task, ...]:
    return tuple(
        _make_task(room, world, number)
        for room, world in _rooms().items()
        if split_of(room) is split
        for number in range(TASKS_A_ROOM)
    )


@lru_cache(maxsize=1)
def _rooms() -> dict[str, NewbenchWorld]:
    """Create all rooms from their numbers, identical in every process."""
    return {f"room-{number}": _make_room(number) for number in range(N_ROOMS)}


def _make_room(number: int) -> NewbenchWorld:
    rng = np.random.default_rng(number)
    boxes = [BOXES[i] for i in rng.permutation(len(BOXES))[:4]]
    things = [THINGS[i] for i in rng.permutation(len(THINGS))[:6]]
    contents = tuple(tuple(things[i:j]) for i, j in ((0, 1), (1, 3), (3, 6), (6, 6)))
    return NewbenchWorld(boxes=tuple(boxes), contents=contents)


def _make_task(room: str, world: NewbenchWorld, number: int) -> Task:
    start, goal = world.boxes[number], world.boxes[number + 1]
    thing = world.contents[number][0]
    return Task(
        benchmark="newbench",
        name=f"newbench/{room}/{number}",
        split=split_of(room),
        scenario=room,
        instruction=instruction_of(thing, goal),
        world=world,
        verifier=NewbenchVerifier(thing=thing, box=goal),
        solution=(f"open {start}", f"take {thing}", f"open {goal}", f"put {goal}", "done"),
    )
