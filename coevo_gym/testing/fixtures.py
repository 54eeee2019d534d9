"""Functions that create envs and replay actions in tests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import gymnasium as gym

from coevo_gym.agents.scripted import ScriptedAgent
from coevo_gym.core.benchmark import find_task, get_benchmark
from coevo_gym.core.seams import Agent
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import EvalTrajectory
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes import EnvPool, EvalEpisode, Lost, run_one
from coevo_gym.episodes.episode import Outcome


def make_env(
    benchmark: str, task: Task | str | None = None, *, seed: int = 0, **kwargs: Any
) -> TaskEnv:
    """Create a bare env (without wrappers) and reset it to ``task``.

    Args:
        benchmark: name of the benchmark.
        task: a Task, or the name or id of a native task; None for the training task that the seed
            picks.
        seed: seed of the reset.
        **kwargs: arguments for the env.

    Example:
        >>> env = make_env("webshop")
        >>> env.task.split
        <Split.TRAIN: 'train'>
    """
    if isinstance(task, str):
        task = find_task(benchmark, task)
    if task is not None:
        kwargs.setdefault("split", str(task.split))
    env = _create_env(benchmark, **kwargs)
    env.reset(seed=seed, options=None if task is None else {"task": task})
    return env


def replay(task: Task, actions: Sequence[str] | None = None) -> EvalTrajectory:
    """Play actions in a fresh env until the episode ends.

    Args:
        task: task to play.
        actions: actions to play; None for the task's reference solution.

    Returns:
        The record of the episode. Actions after its end are not played. If the actions run out
        first, empty actions follow until the env truncates the episode.
    """
    agent = ScriptedAgent(task.solution if actions is None else actions, after="")
    outcome = run_in_fresh_env(task, agent)
    if isinstance(outcome, Lost):
        raise outcome.error
    return outcome.record


def run_in_fresh_env(task: Task, agent: Agent) -> Outcome[EvalTrajectory]:
    """Run one episode of a task in a new env and return its outcome."""
    with closing(EnvPool(lambda: _create_env(task.benchmark, split=str(task.split)))) as envs:
        return run_one(EvalEpisode(task, seed=0), agent, envs)


def _create_env(benchmark: str, **kwargs: Any) -> TaskEnv:
    """Create a bare env that has not been reset."""
    env_id = get_benchmark(benchmark).env_id
    env = gym.make(env_id, disable_env_checker=True, **kwargs).unwrapped
    assert isinstance(env, TaskEnv)
    return env
