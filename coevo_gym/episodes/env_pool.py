"""A pool of envs that are lent to episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import gymnasium as gym

from coevo_gym.core.errors import ConfigError
from coevo_gym.envs.checks import is_positive_int
from coevo_gym.envs.workers.worker_pool import WorkerPool

ResultT = TypeVar("ResultT")


class EnvPool:
    """A pool of envs of one kind that are reset between episodes instead of rebuilt.

    Args:
        make_env: function that makes one env: a :class:`TaskEnv`, wrapped or unwrapped.
        max_envs: maximum number of episodes in progress.
        n_workers: number of worker processes for the engines, which then run in parallel; 0 runs
            them in this process. The results are the same.

    Attributes:
        workers: the worker processes, or None.

    Raises:
        ConfigError: if a number is invalid.

    Example:
        >>> pool = EnvPool(lambda: gym.make("CoEvolve-WebShop-v0"), max_envs=16)
        >>> pool.close()
    """

    def __init__(
        self,
        make_env: Callable[[], gym.Env[str, str]],
        *,
        max_envs: int = 128,
        n_workers: int = 0,
    ) -> None:
        if not is_positive_int(max_envs):
            raise ConfigError(f"max_envs must be a positive int, got {max_envs!r}")
        self.max_envs = max_envs
        self.workers = WorkerPool(n_workers) if n_workers else None
        self._make_env = make_env
        self._idle: list[gym.Env[str, str]] = []
        self._lent: dict[int, tuple[object, gym.Env[str, str]]] = {}  # id -> (scope, env)

    @contextmanager
    def lend_envs(self) -> Iterator[Callable[[], gym.Env[str, str]]]:
        """Lend envs during a ``with`` block, and close any that were not returned."""
        scope = object()

        def take() -> gym.Env[str, str]:
            env = self._idle.pop() if self._idle else self._create_env()
            self._lent[id(env)] = scope, env
            return env

        try:
            yield take
        finally:
            for key, (borrower, env) in list(self._lent.items()):
                if borrower is scope:
                    del self._lent[key]
                    env.close()

    def put(self, env: gym.Env[str, str]) -> None:
        """Return an env to the pool for later episodes."""
        self._lent.pop(id(env), None)
        self._idle.append(env)

    def close_env(self, env: gym.Env[str, str]) -> None:
        """Close an env whose engine has failed, so that it is not used again."""
        self._lent.pop(id(env), None)
        env.close()

    def run_jobs(
        self, envs: Sequence[gym.Env[str, str]], jobs: Sequence[Callable[[], ResultT]]
    ) -> Iterator[tuple[int, ResultT]]:
        """Run one job for each of the given envs, in parallel if there are workers.

        Returns:
            Indices and results, in order: one at a time, or, with workers, once all jobs are done.
        """
        if self.workers is None:
            return ((index, job()) for index, job in enumerate(jobs))
        return self.workers.run_jobs(envs, jobs)

    def close(self) -> None:
        """Close every idle env and stop the workers. Repeated calls have no effect."""
        while self._idle:
            self._idle.pop().close()
        if self.workers is not None:
            self.workers.close()

    def _create_env(self) -> gym.Env[str, str]:
        env = self._make_env()
        return env if self.workers is None else self.workers.put(env)
