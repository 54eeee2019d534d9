"""Native tasks: the official tasks, or the built-in tasks if the official data is not installed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coevo_gym.core.benchmark import PanelEntry
from coevo_gym.core.errors import BenchmarkNotInstalled, DataError, TaskError
from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Split, Task, first_non_train
from coevo_gym.envs.appworld.builtin import ensure_builtin_root
from coevo_gym.envs.appworld.setup import find_data_folder
from coevo_gym.envs.appworld.world import AppWorldVerifier, AppWorldWorld
from coevo_gym.envs.tags import asks_nothing, tags_from
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
    """Return a native task's scenario, such as ``82e2fac`` or ``builtin/82e2fac``."""
    name = base.partition("_")[0]
    return name if data == OFFICIAL else f"{BUILTIN}/{name}"


def split_of(scenario: str) -> Split:
    """Return the split of a scenario.

    Raises:
        TaskError: if the scenario does not exist.
    """
    data = ensure_builtin_root().name if scenario.startswith(f"{BUILTIN}/") else OFFICIAL
    return _find_split(scenario, ensure_root(data), data)


def _find_split(scenario: str, root: Path, data: str) -> Split:
    side = _split_by_scenario(root, data).get(scenario)
    if side is None:
        raise TaskError(f"AppWorld has no scenario {scenario!r}.")
    return side


def side_of(task: Task) -> Split:
    """Determine a task's split from its scenario and world. ``task.split`` is not used.

    Raises:
        BenchmarkNotInstalled: if its data is not installed.
        DataError: if another version of its data is installed.
        TaskError: if the scenario or world does not exist, or they do not belong together.
    """
    world = task.world
    assert isinstance(world, AppWorldWorld)
    root = ensure_root_of_world(world)
    actual = scenario_of(world.data, world.base)
    side = first_non_train(
        *(_find_split(scenario, root, world.data) for scenario in (task.scenario, actual))
    )
    if side is Split.TRAIN and task.scenario != actual:
        raise TaskError(f"the scenario is {task.scenario!r}, but the world belongs to {actual!r}")
    return side


def native_tasks(split: Split, subset: str | None = None) -> Sequence[Task]:
    """Return the native tasks of a split, always in the same order.

    Args:
        split: the split. ``val`` corresponds to the official dev, ``test`` to test_normal followed
            by test_challenge.
        subset: an official subset, or ``builtin``; None for the subsets that are installed.

    Raises:
        TaskError: if subset is unknown, or has no task in this split.
        BenchmarkNotInstalled: if the engine, or the requested official data, is missing.
    """
    if subset is not None and subset not in SUBSETS:
        raise TaskError(f"AppWorld has no subset {subset!r}. Choose one of: {', '.join(SUBSETS)}.")
    official = subset != BUILTIN and data_folder("appworld") is not None
    parts = [
        name for name, side in _SPLITS.items() if side is split and subset in (name, None, BUILTIN)
    ]
    if not parts:
        raise TaskError(f"{subset} belongs to the {_SPLITS[str(subset)]} split, not to {split}.")
    if subset in _SPLITS and not official:
        raise BenchmarkNotInstalled(
            f"Subset {subset!r} needs official AppWorld data, which is not installed. Run `coevo "
            "install appworld --data`, or `coevo install appworld --from DIR` if you have the data."
        )
    data = OFFICIAL if official else ensure_builtin_root().name
    root = ensure_root(data)
    return tuple(task for part in parts for task in _subset_tasks(root, data, part))


def ensure_root_of_world(world: AppWorldWorld) -> Path:
    """Return the engine's root folder for a world, creating the built-in world if necessary.

    The engine builds a path from the native task's id, so the id must be listed in the data.
    Otherwise a path could lead from a training scenario into a test scenario.

    Raises:
        BenchmarkNotInstalled: if its data is not installed.
        DataError: if the data is incomplete, or another version is installed.
        TaskError: if the data does not list the task.
    """
    root = ensure_root(world.data)
    if world.base not in _task_ids(root):
        raise TaskError(f"AppWorld's data ({world.data}) has no task {repr(world.base)[:80]}.")
    return root


def ensure_root(data: str) -> Path:
    """Return the root folder of a data set, creating the built-in world if necessary.

    It contains a ``data`` folder.

    Raises:
        BenchmarkNotInstalled: if the data is not installed.
        DataError: if the data is incomplete, or another version is installed.
    """
    if data != OFFICIAL:
        root = ensure_builtin_root()
        if data != root.name:
            raise DataError(
                f"The task was created with version {data} of AppWorld's built-in world, but this "
                f"machine uses version {root.name}. Choose tasks created with version {root.name}."
            )
        return root
    folder = data_folder("appworld")
    if folder is None:
        raise BenchmarkNotInstalled(
            "The official AppWorld data is not installed. Run `coevo install appworld --data`, or "
            "`coevo install appworld --from DIR` if you already have it."
        )
    inner = find_data_folder(folder)
    if inner.name != "data":
        raise DataError(
            f"{inner} contains AppWorld's data, but the engine needs a folder named data. Rename "
            f"the folder, or run `coevo install appworld --from {inner}`."
        )
    return inner.parent


@lru_cache(maxsize=8)
def _subset_tasks(root: Path, data: str, part: str) -> tuple[Task, ...]:
    """Return the tasks in an official subset."""
    return tuple(_create_task(root, data, part, base) for base in _read_ids(root, part))


def _create_task(root: Path, data: str, part: str, base: str) -> Task:
    specs = _read_json(root / "data" / "tasks" / base / "specs.json")
    return Task(
        benchmark="appworld",
        name=f"appworld/{base}" if data == OFFICIAL else f"appworld/{BUILTIN}/{base}",
        split=_SPLITS[part],
        subset=part if data == OFFICIAL else BUILTIN,
        scenario=scenario_of(data, base),
        instruction=specs["instruction"],
        world=AppWorldWorld(data=data, base=base),
        verifier=AppWorldVerifier(),
        solution=_read_solution(root / "data" / "tasks" / base / "ground_truth"),
    )


def _read_solution(folder: Path) -> tuple[str, ...]:
    """Return the reference solution as a one-action tuple, or () if there is none."""
    file = folder / "compiled_solution.py"
    if not file.is_file():
        return ()
    code = file.read_text(encoding="utf-8").strip()
    call = "\nsolution(apis, requester)" if "def solution(" in code else ""
    return (f"```python\n{code}{call}\n```",)


@lru_cache(maxsize=4)
def _split_by_scenario(root: Path, data: str) -> Mapping[str, Split]:
    """Map each scenario to its split."""
    return {
        scenario_of(data, base): side
        for part, side in _SPLITS.items()
        for base in _read_ids(root, part)
    }


@lru_cache(maxsize=4)
def _task_ids(root: Path) -> frozenset[str]:
    """Return the ids of all tasks."""
    return frozenset(base for part in _SPLITS for base in _read_ids(root, part))


def _read_ids(root: Path, part: str) -> Sequence[str]:
    """Return the ids of the tasks in an official list, or () if the list does not exist."""
    file = root / "data" / "datasets" / f"{part}.txt"
    return file.read_text(encoding="utf-8").split() if file.is_file() else ()


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{file} cannot be read: {error}. Run `coevo install appworld` again."
        ) from error


def panel_entry(task: Task) -> PanelEntry:
    """Return a task's panel entry: keys that identify it in other code bases, and its content.

    The place is the task's id and official subset. The content is the instruction, ``specs.json``
    (supervisor, clock and version of the databases) and the code of the task's own tests.

    Raises:
        BenchmarkNotInstalled: if the task's data is not installed.
        DataError: if the data is damaged.
        TaskError: if the data has no such task.
    """
    assert isinstance(task.world, AppWorldWorld)
    base = task.world.base
    folder = ensure_root_of_world(task.world) / "data" / "tasks" / base
    tests = folder / "ground_truth" / "evaluation.py"
    parts = {
        "instruction": task.instruction,
        "specs": _read_json(folder / "specs.json"),
        "tests": tests.read_text(encoding="utf-8") if tests.is_file() else "",
    }
    return PanelEntry({"subset": task.subset, "task": base}, parts)


def data_versions(task: Task) -> dict[str, str]:
    """Return the name of the data: ``official``, or the version of the built-in world."""
    assert isinstance(task.world, AppWorldWorld)
    return {"data": task.world.data}


def _word_pattern(*phrases: str) -> re.Pattern[str]:
    """Return a pattern that matches any of the phrases as whole words."""
    return re.compile(rf"(?<!\w)(?:{'|'.join(phrases)})(?!\w)", re.IGNORECASE)


APPS = MappingProxyType(
    {
        "amazon": _word_pattern("amazon"),
        "file_system": _word_pattern(
            "file[ _]?system", "files?", "folders?", "director(?:y|ies)", r"~/.*"
        ),
        "gmail": _word_pattern("gmail", "e-?mails?", "inbox"),
        "phone": _word_pattern(
            "phone", "alarms?", "(?:text|voice) messages?", "text (?:my|the|all|each)"
        ),
        "simple_note": _word_pattern("simple[ _]?notes?", "my notes?", "notes app"),
        "splitwise": _word_pattern("splitwise"),
        "spotify": _word_pattern("spotify"),
        "todoist": _word_pattern("todoist"),
        "venmo": _word_pattern("venmo"),
    }
)
"""Patterns that match mentions of each app in a task's instruction."""
_QUESTION = _word_pattern(r"how (?:many|much|long)", "(?:tell|give) me", "answer with")
_ASKS = re.compile(
    r"(?:what|which|who|whose|when|where|quote)\b|(?!could|can|would|will).*\?$", re.I
)


def tags_of(task: Task | Draft) -> tuple[str, ...]:
    """Return an ``app:`` tag for each app mentioned, and ``goal:question`` or ``goal:change``.

    Both are based on the instruction alone, because a request does not come with a list of apps.
    """
    if asks_nothing(task):
        return ()
    text = " ".join(task.instruction.split())
    asks = _QUESTION.search(text) or _ASKS.match(text)
    apps = [("app", app) for app, words in APPS.items() if words.search(text)]
    return tags_from([*apps, ("goal", "question" if asks else "change")])
