"""Native tasks: the official ones, or those of the built-in world where they are not installed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from coevo_gym.core.errors import BenchmarkNotInstalled, DataError, TaskError
from coevo_gym.core.task import Split, Task, strictest
from coevo_gym.envs.appworld.builtin import builtin_root
from coevo_gym.envs.appworld.setup import data_in
from coevo_gym.envs.appworld.world import AppWorldVerifier, AppWorldWorld
from coevo_gym.provision import data_folder

BUILTIN = "builtin"
OFFICIAL = "official"
_SPLITS = {
    "train": Split.TRAIN,
    "dev": Split.VAL,
    "test_normal": Split.TEST,
    "test_challenge": Split.TEST,
}
SUBSETS = (*_SPLITS, BUILTIN)


def scenario_of(data: str, base: str) -> str:
    """The scenario of a native task: ``82e2fac``, or ``builtin/`` and the same."""
    name = base.partition("_")[0]
    return name if data == OFFICIAL else f"{BUILTIN}/{name}"


def split_of(scenario: str) -> Split:
    """The split of a scenario.

    Raises:
        TaskError: if there is no such scenario.
    """
    data = builtin_root().name if scenario.startswith(f"{BUILTIN}/") else OFFICIAL
    return _side(scenario, root_of(data), data)


def _side(scenario: str, root: Path, data: str) -> Split:
    found = _splits(root, data).get(scenario)
    if found is None:
        raise TaskError(f"AppWorld has no scenario {scenario!r}.")
    return found


def side_of(task: Task) -> Split:
    """Return the split of a task by its scenario and its world, whatever split it claims.

    Raises:
        BenchmarkNotInstalled: if its data is not at hand.
        DataError: if what is at hand is another version.
        TaskError: if there is no such scenario or world, or the world is in another scenario.
    """
    world = task.world
    assert isinstance(world, AppWorldWorld)
    root = root_of_world(world)
    actual = scenario_of(world.data, world.base)
    side = strictest(*(_side(scenario, root, world.data) for scenario in (task.scenario, actual)))
    if side is Split.TRAIN and task.scenario != actual:
        raise TaskError(f"its scenario is {task.scenario!r}, but its world is in {actual!r}")
    return side


def native_tasks(split: Split, subset: str | None = None) -> Sequence[Task]:
    """Native tasks of a split, always in the same order.

    Args:
        split: which side of the border: ``train`` is the official train, ``val`` dev, and ``test``
            test_normal, followed by test_challenge.
        subset: the official name of a part, or ``builtin``; None for what is at hand.

    Raises:
        TaskError: if subset is unknown, or has no task in this split.
        BenchmarkNotInstalled: if the engine, or the official data that is asked for, is missing.
    """
    if subset is not None and subset not in SUBSETS:
        raise TaskError(
            f"Unknown subset {subset!r} of appworld. Choose one of: {', '.join(SUBSETS)}."
        )
    official = subset != BUILTIN and data_folder("appworld") is not None
    parts = [
        name for name, side in _SPLITS.items() if side is split and subset in (name, None, BUILTIN)
    ]
    if not parts:
        raise TaskError(f"{subset} is the {_SPLITS[str(subset)]} split, not {split}.")
    if subset in _SPLITS and not official:
        raise BenchmarkNotInstalled(
            f"The official AppWorld tasks are not at hand, so there is no subset {subset!r}. Run "
            "`coevo install appworld --data`, or `--from` a folder that has them."
        )
    data = OFFICIAL if official else builtin_root().name
    root = root_of(data)
    return tuple(task for part in parts for task in _part(root, data, part))


def root_of_world(world: AppWorldWorld) -> Path:
    """The folder that the engine takes for a world.

    The engine makes a path of the native task's id, so it has to be one that the data lists: a path
    could lead from a training scenario into a test one.

    Raises:
        BenchmarkNotInstalled: if its data is not at hand.
        DataError: if it is incomplete, or what is at hand is another version.
        TaskError: if the data lists no such task.
    """
    root = root_of(world.data)
    if world.base not in _bases(root):
        raise TaskError(f"AppWorld's data ({world.data}) has no task {world.base!r:.80}.")
    return root


def root_of(data: str) -> Path:
    """The folder that the engine takes for this data; it has a ``data`` folder in it.

    Raises:
        BenchmarkNotInstalled: if it is not at hand.
        DataError: if it is incomplete, or what is at hand is another version.
    """
    if data != OFFICIAL:
        root = builtin_root()
        if data != root.name:
            raise DataError(
                f"The task was made in another version of AppWorld's built-in world ({data}, here "
                f"is {root.name}). Choose tasks of this one."
            )
        return root
    folder = data_folder("appworld")
    if folder is None:
        raise BenchmarkNotInstalled(
            "The official AppWorld data is not at hand. Run `coevo install appworld --data`, or "
            "`--from` a folder that has it."
        )
    inner = data_in(folder)
    if inner.name != "data":
        raise DataError(
            f"{inner} holds AppWorld's data, but the engine looks for a folder named data. Rename "
            f"it, or run `coevo install appworld --from {inner}`."
        )
    return inner.parent


@lru_cache(maxsize=8)
def _part(root: Path, data: str, part: str) -> tuple[Task, ...]:
    """The tasks that are listed under an official name."""
    return tuple(_task(root, data, part, base) for base in _listed(root, part))


def _task(root: Path, data: str, part: str, base: str) -> Task:
    specs = _json(root / "data" / "tasks" / base / "specs.json")
    return Task(
        benchmark="appworld",
        name=f"appworld/{base}" if data == OFFICIAL else f"appworld/{BUILTIN}/{base}",
        split=_SPLITS[part],
        subset=part if data == OFFICIAL else BUILTIN,
        scenario=scenario_of(data, base),
        instruction=specs["instruction"],
        world=AppWorldWorld(data=data, base=base),
        verifier=AppWorldVerifier(),
        solution=_solution(root / "data" / "tasks" / base / "ground_truth"),
    )


def _solution(folder: Path) -> tuple[str, ...]:
    """The reference solution, if it is there, as the one action that carries it out."""
    file = folder / "compiled_solution.py"
    if not file.is_file():
        return ()
    code = file.read_text(encoding="utf-8").strip()
    call = "\nsolution(apis, requester)" if "def solution(" in code else ""
    return (f"```python\n{code}{call}\n```",)


@lru_cache(maxsize=4)
def _splits(root: Path, data: str) -> Mapping[str, Split]:
    """The split of each scenario."""
    return {
        scenario_of(data, base): side
        for part, side in _SPLITS.items()
        for base in _listed(root, part)
    }


@lru_cache(maxsize=4)
def _bases(root: Path) -> frozenset[str]:
    """The ids of all tasks."""
    return frozenset(base for part in _SPLITS for base in _listed(root, part))


def _listed(root: Path, part: str) -> Sequence[str]:
    """The ids of the tasks under an official name; none if there is no such list."""
    file = root / "data" / "datasets" / f"{part}.txt"
    return file.read_text(encoding="utf-8").split() if file.is_file() else ()


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{file} cannot be read: {error}. Run `coevo install appworld` again."
        ) from error
