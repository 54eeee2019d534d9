"""Where the committed lists of numbers come from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import coevo_gym
from coevo_gym.core.task import Split
from coevo_gym.envs import bfcl
from coevo_gym.envs.bfcl.tasks import native_tasks
from coevo_gym.envs.bfcl.world import BFCLWorld

COMMITTED = json.loads(Path(bfcl.__file__).with_name("splits.json").read_text())


def alike() -> list[tuple[int, ...]]:
    """Numbers whose base tasks begin in one and the same state."""
    starts: dict[str, list[int]] = {}
    for index, task in enumerate(native_tasks(Split.TEST, "base", "all200")):
        assert isinstance(task.world, BFCLWorld)
        starts.setdefault(task.world.config, []).append(index)
    return [tuple(indices) for indices in starts.values() if len(indices) > 1]


def draw(seed: int) -> dict[str, list[int]]:
    """30, 10 and 10 numbers of each block of 50, those that begin alike on one side."""
    rng, together = np.random.default_rng(seed), alike()
    splits: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for start in range(0, 200, 50):
        block = range(start, start + 50)
        units = [unit for unit in together if unit[0] in block]
        units += [(i,) for i in block if not any(i in unit for unit in together)]
        order = [units[k] for k in rng.permutation(len(units))]
        order.sort(key=len, reverse=True)
        room = {"train": 30, "val": 10, "test": 10}
        for unit in order:
            sides = [side for side in room if room[side] >= len(unit)]
            weights = np.array([room[side] for side in sides], float)
            side = sides[int(rng.choice(len(sides), p=weights / weights.sum()))]
            room[side] -= len(unit)
            splits[side] += unit
    return {side: sorted(numbers) for side, numbers in splits.items()}


def test_the_committed_splits_are_the_draw_of_seed_0() -> None:
    assert draw(0) == COMMITTED


def test_the_tasks_of_each_split_are_those_of_the_committed_list() -> None:
    for split, numbers in COMMITTED.items():
        tasks = coevo_gym.tasks("bfcl", split)
        assert [int(task.name.rpartition("_")[2]) for task in tasks] == numbers * 4
