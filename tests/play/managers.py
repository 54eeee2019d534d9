"""Desks over the toy benchmark, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevo_gym.core.task import Split, Task
from coevo_gym.view.play.episodes import EpisodeManager
from coevo_gym.view.play.source import benchmark_source
from tests.toy import BENCHMARK

TASK, OTHER = BENCHMARK.tasks(Split.TRAIN)[:2]
HELD_OUT = BENCHMARK.tasks(Split.VAL)[0]


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def toy_manager(folder: Path, split: str = "train", **more: Any) -> EpisodeManager:
    return EpisodeManager(
        benchmark_source("toy", split), demonstrations=folder / "shown.jsonl", **more
    )


def play_solution(manager: EpisodeManager, task: Task) -> dict[str, Any]:
    """The state after a task was begun and solved."""
    state = manager.begin(task.id)
    for step, action in enumerate(task.solution):
        state = manager.act(state["id"], action, step)
    return state
