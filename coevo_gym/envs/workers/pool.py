"""A few worker processes that share the engines of many envs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import gymnasium as gym

from coevo_gym.core.errors import ConfigError
from coevo_gym.envs.checks import is_positive_int, is_positive_number
from coevo_gym.envs.workers.remote import RemoteEnv, put_to_work
from coevo_gym.envs.workers.starting import require_workers
from coevo_gym.envs.workers.worker import Worker

TIMEOUT_S = 300.0
"""How long an order may take: beyond all that an env itself waits for by default."""

ResultT = TypeVar("ResultT")


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool:
    """Worker processes in which the engines of envs run. They start when an env is reset.

    Each belongs to a process group of its own and ends with the process that made the pool, however
    that ends. One that is lost, hangs or breaks loses the episode that it was busy with, and
    another takes its place.

    Args:
        n_workers: how many.
        timeout_s: seconds that a reset, a step or a verdict may take; then its worker is killed.
            Leave room for what the env itself waits for: AppWorld's code runs 60 s at most.

    Raises:
        ConfigError: if an argument is not usable, or there can be no workers on this system.

    Example:
        >>> import coevo_gym, gymnasium as gym
        >>> pool = WorkerPool(2)
        >>> envs = [pool.put(gym.make("CoEvolve-WebShop-v0")) for _ in range(4)]
        >>> pool.close()
    """

    def __init__(self, n_workers: int, *, timeout_s: float = TIMEOUT_S) -> None:
        require_workers()
        if not is_positive_int(n_workers):
            raise ConfigError(f"n_workers must be a positive int, actual: {n_workers!r}")
        if not is_positive_number(timeout_s):
            raise ConfigError(f"timeout_s must be a positive number, actual: {timeout_s!r}")
        self.workers = [Worker(index, timeout_s) for index in range(n_workers)]
        self._n_put = 0
        self._threads: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no threads, and its workers no processes."""
        return {**self.__dict__, "_threads": None}

    @property
    def pids(self) -> tuple[int | None, ...]:
        """Numbers of the worker processes; None where none runs now."""
        return tuple(worker.pid for worker in self.workers)

    def put(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        """Have the engine of an env run in the next worker in turn; returns the env.

        Raises:
            ConfigError: see :func:`~coevo_gym.envs.workers.remote.put_to_work`.
        """
        put_to_work(env, self.workers[self._n_put % len(self.workers)])
        self._n_put += 1
        return env

    def each(
        self, envs: Sequence[gym.Env[Any, Any]], jobs: Sequence[Callable[[], ResultT]]
    ) -> Iterator[tuple[int, ResultT]]:
        """Do a job for each env; those of different workers are done beside each other.

        Args:
            envs: envs of this pool.
            jobs: what to do with each.

        Yields:
            Places and results, in order, when all jobs are done; then the first error is raised.
        """
        of_worker: dict[int, list[int]] = {}
        for index, env in enumerate(envs):
            of_worker.setdefault(cast(RemoteEnv, env.unwrapped)._worker.index, []).append(index)
        results: list[ResultT | BaseException | None] = [None] * len(envs)

        def work(indices: Sequence[int]) -> None:
            for index in indices:
                try:
                    results[index] = jobs[index]()
                except Exception as error:  # the others go on; it is raised below
                    results[index] = error

        self._beside(work, list(of_worker.values()))
        for index, result in enumerate(results):
            if not isinstance(result, BaseException):
                yield index, cast(ResultT, result)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def close(self) -> None:
        """End the workers; twice is fine, and an env that is reset starts them again."""
        for worker in self.workers:
            worker.close()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def _beside(
        self, work: Callable[[Sequence[int]], None], parts: Sequence[Sequence[int]]
    ) -> None:
        if len(parts) < 2:
            for part in parts:
                work(part)
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(len(self.workers), thread_name_prefix="worker")
        under_way = [self._threads.submit(work, part) for part in parts]
        try:
            for future in under_way:
                future.result()
        except BaseException:  # an interrupt: no thread may go on waiting for an engine
            for worker in self.workers:
                worker.interrupt()
            for future in under_way:
                future.cancel()
            raise
