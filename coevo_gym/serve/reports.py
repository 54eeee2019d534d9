"""Checks of reported episodes before they are acknowledged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import TaskError
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Trajectory
from coevo_gym.core.trajectory_json import trajectory_from_json
from coevo_gym.curricula.saved import MOST


def read_trajectory(data: dict[str, Any]) -> Trajectory:
    """Read an episode from its JSON.

    Raises:
        TaskError: if the JSON does not describe an episode.
    """
    try:
        return trajectory_from_json(data)
    except (ValidationError, ValueError, TypeError, RecursionError) as error:
        raise TaskError(f"This is not the JSON of a trajectory: {error}") from error


def check_report(episode: Trajectory, body: Mapping[str, Any], task: Task) -> None:
    """Check that an episode can be recorded and saved before it is acknowledged.

    Groups are recorded when their last episode arrives, and recording reads the benchmark's symbol
    of every step.

    Args:
        episode: reported episode.
        body: JSON of the episode.
        task: task of its ticket.

    Raises:
        TaskError: if the episode cannot be recorded or saved.
    """
    try:
        json.dumps(body, allow_nan=False)
    except ValueError as error:
        raise TaskError(f"The trajectory cannot be stored as JSON: {error}.") from error
    for version in episode.policy_versions:
        if abs(version) > MOST:
            raise TaskError(f"A policy version is at most {MOST}, actual: {version}")
    benchmark = get_benchmark(task.benchmark)
    for number, step in enumerate(episode.steps):
        try:
            benchmark.symbol(step).split()
        except Exception as error:
            raise TaskError(
                f"Step {number} of the trajectory is not one that {task.benchmark} can produce: "
                f"{type(error).__name__}: {error}. Its action was {step.action[:200]!r}."
            ) from error
