"""Envs that are lent to one client after another."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

import gymnasium as gym

MakeEnv = Callable[[str], gym.Env[str, str]]
"""Makes an env on a split, by its name."""


class EnvShelf:
    """Envs by split, for any thread: reset, not rebuilt, from client to client.

    Args:
        make_env: makes an env on a split.
    """

    def __init__(self, make_env: MakeEnv) -> None:
        self._make_env = make_env
        self._idle: dict[str, list[gym.Env[str, str]]] = defaultdict(list)
        self._lock = threading.Lock()
        self._closed = False

    def take(self, split: str) -> gym.Env[str, str]:
        """An env that nobody else has.

        Raises:
            TaskError: if there is no such split.
        """
        with self._lock:
            if self._idle[split]:
                return self._idle[split].pop()
        return self._make_env(split)

    def put(self, split: str, env: gym.Env[str, str]) -> None:
        """Give an env back; one whose engine has failed is closed instead."""
        with self._lock:
            if not self._closed:
                self._idle[split].append(env)
                return
        env.close()

    def close(self) -> None:
        """Close all idle envs, and those that come back later; twice is fine."""
        with self._lock:
            self._closed = True
            idle = [env for envs in self._idle.values() for env in envs]
            self._idle.clear()
        for env in idle:
            env.close()
