"""Playback of given actions in an env."""

from __future__ import annotations

from collections.abc import Iterable

from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import EndReason, Trajectory
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes.episode import trajectory_of


def play(env: TaskEnv, task: Task, actions: Iterable[str]) -> Trajectory:
    """Play the actions, and return the trajectory; it is truncated if the actions run out."""
    env.reset(seed=0, options={"task": task})
    for action in actions:
        *_, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            return trajectory_of(env)
    env.cut(EndReason.TIME_LIMIT)
    return trajectory_of(env)
