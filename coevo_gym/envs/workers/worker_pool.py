"""A pool of worker processes that run the engines of many envs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import gymnasium as gym

from coevo_gym.core.errors import ConfigError
from coevo_gym.envs.checks import is_positive_int, is_positive_number
from coevo_gym.envs.workers.remote import RemoteEnv, move_to_worker
from coevo_gym.envs.workers.starting import can_run_workers
from coevo_gym.envs.workers.worker import Worker

TIMEOUT_S = 300.0
"""Default time limit per hook call in seconds; longer than any default wait inside an env."""

ResultT = TypeVar("ResultT")


def available_cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool:
    """A pool of worker processes that run env engines.

    The processes start when an env is reset. Each has its own process group and exits together with
    the process that created the pool, even if that process is killed. A worker that dies, hangs or
    fails loses its current episode and is replaced.

    Args:
        n_workers: number of worker processes.
        timeout_s: time limit in seconds for a reset, a step or a verdict; a slower worker is
            killed. Allow for the env's own limits: AppWorld's code may run for 60 s.

    Raises:
        ConfigError: if an argument is invalid, or this system cannot run workers.

    Example:
        >>> import coevo_gym, gymnasium as gym
        >>> pool = WorkerPool(2)
        >>> envs = [pool.put(gym.make("CoEvolve-WebShop-v0")) for _ in range(4)]
        >>> pool.close()
    """

    def __init__(self, n_workers: int, *, timeout_s: float = TIMEOUT_S) -> None:
        if not can_run_workers():
            raise ConfigError(
                f"Worker processes require Linux, got {sys.platform}. To run engines in this "
                'process, use mode="in_process".'
            )
        if not is_positive_int(n_workers):
            raise ConfigError(f"n_workers must be a positive int, got {n_workers!r}")
        if not is_positive_number(timeout_s):
            raise ConfigError(f"timeout_s must be a positive number, got {timeout_s!r}")
        self.workers = [Worker(index, timeout_s) for index in range(n_workers)]
        self._n_put = 0
        self._threads: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the pool's state for pickling. Threads and running processes are left out."""
        return {**self.__dict__, "_threads": None}

    @property
    def pids(self) -> tuple[int | None, ...]:
        """The process ids of the workers. The id of a worker that is not running is None."""
        return tuple(worker.pid for worker in self.workers)

    def put(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        """Assign an env's engine to the next worker in turn, and return the env.

        Raises:
            ConfigError: see :func:`~coevo_gym.envs.workers.remote.move_to_worker`.
        """
        move_to_worker(env, self.workers[self._n_put % len(self.workers)])
        self._n_put += 1
        return env

    def run_jobs(
        self, envs: Sequence[gym.Env[Any, Any]], jobs: Sequence[Callable[[], ResultT]]
    ) -> Iterator[tuple[int, ResultT]]:
        """Run a job for each env. Jobs on different workers run in parallel.

        Yields:
            The index and result of each successful job, in order, once all jobs are done. Then the
            first error is raised.
        """
        of_worker: dict[int, list[int]] = {}
        for index, env in enumerate(envs):
            of_worker.setdefault(cast(RemoteEnv, env.unwrapped)._worker.index, []).append(index)
        results: list[ResultT | BaseException | None] = [None] * len(envs)

        def work(indices: Sequence[int]) -> None:
            for index in indices:
                try:
                    results[index] = jobs[index]()
                except Exception as error:  # other jobs continue; the error is raised below
                    results[index] = error

        self._run_in_threads(work, list(of_worker.values()))
        for index, result in enumerate(results):
            if not isinstance(result, BaseException):
                yield index, cast(ResultT, result)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def close(self) -> None:
        """Stop the workers. Repeated calls have no effect. Resetting an env restarts its worker."""
        for worker in self.workers:
            worker.close()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def _run_in_threads(
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
        except BaseException:  # an interrupt: no thread may keep waiting for an engine
            for worker in self.workers:
                worker.kill()
            for future in under_way:
                future.cancel()
            raise
