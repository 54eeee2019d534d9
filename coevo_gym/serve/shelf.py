"""Envs that are lent to one client after another."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any, cast

import gymnasium as gym

from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.workers.pool import WorkerPool, cores
from coevo_gym.envs.workers.starting import can_run

MakeEnv = Callable[[str], gym.Env[str, str]]
"""Makes an env on a split, by its name."""


class EnvShelf:
    """Envs by split, for any thread: reset, not rebuilt, from client to client.

    Engines run in this process, and begin their episodes one at a
    time where they share what they read then. Those of a benchmark whose
    ``vector_mode`` is ``"process"`` run in worker processes, one for each processor, on systems
    that can have some.

    Args:
        make_env: makes an env on a split.

    Attributes:
        workers: the worker processes; None before the first env that needs some.
    """

    def __init__(self, make_env: MakeEnv) -> None:
        self.workers: WorkerPool | None = None
        self._make_env = make_env
        self._idle: dict[str, list[gym.Env[str, str]]] = defaultdict(list)
        self._lock, self._beginning = threading.Lock(), threading.Lock()
        self._closed = False

    def take(self, split: str) -> gym.Env[str, str]:
        """An env that nobody else has.

        Raises:
            TaskError: if there is no such split.
        """
        with self._lock:
            if self._idle[split]:
                return self._idle[split].pop()
        env = self._make_env(split)
        bare = cast(TaskEnv, env.unwrapped)
        if bare.vector_mode == "process" and can_run():
            with self._lock:
                self.workers = self.workers or WorkerPool(cores())
                return self.workers.put(env)
        return _BeginsAlone(env, self._beginning) if bare.begins_alone else env

    def put(self, split: str, env: gym.Env[str, str]) -> None:
        """Give an env back; one whose engine has failed is closed instead."""
        with self._lock:
            if not self._closed:
                self._idle[split].append(env)
                return
        env.close()

    def close(self) -> None:
        """Close all idle envs, and those that come back later; end the workers. Twice is fine."""
        with self._lock:
            self._closed = True
            idle = [env for envs in self._idle.values() for env in envs]
            self._idle.clear()
        for env in idle:
            env.close()
        if self.workers is not None:
            self.workers.close()


class _BeginsAlone(gym.Wrapper[str, str, str, str]):
    """Begins no episode while another one of its kind does."""

    def __init__(self, env: gym.Env[str, str], beginning: threading.Lock) -> None:
        super().__init__(env)
        self._beginning = beginning

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        with self._beginning:
            return self.env.reset(seed=seed, options=options)
