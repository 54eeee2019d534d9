"""A worker whose process is replaced when it dies or hangs."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import Any, NoReturn

from coevo_gym.core.errors import EnvBackendError, WorkersFailed
from coevo_gym.envs.workers.serving import Broken, Order, Refused, Reply, WorkerAnswer
from coevo_gym.envs.workers.starting import Process, get_zygote
from coevo_gym.envs.workers.wire import WireClosed

RESTARTS = 3
"""Maximum number of times in a row that a failed worker is replaced before an error is raised."""
_WAIT_S = 0.2

logger = logging.getLogger(__name__)
_numbers = itertools.count(1)


class Worker:
    """A worker that runs env hooks in a process of its own, one hook at a time.

    Threads that use the same worker wait for each other.

    ``timeout_s`` is the time limit per hook call, in seconds.

    Attributes:
        index: index of the worker in its pool.
        modules: modules that are imported once for all workers, before the first one starts;
            putting an env on the worker may add modules.
        lock: lock held by the thread that uses the worker; waiting for it has no time limit.
    """

    def __init__(self, index: int, timeout_s: float, modules: tuple[str, ...] = ()) -> None:
        self.index = index
        self.modules = modules
        self.lock = threading.RLock()
        self._timeout_s = timeout_s
        self._process: Process | None = None
        self._generation = 0
        self._served = itertools.count()
        self._failures = 0  # in a row, without a success of the same hook
        self._failed_in = ""

    def __getstate__(self) -> dict[str, Any]:
        """Return the worker's state for pickling. A copy starts without a process."""
        return {"index": self.index, "timeout_s": self._timeout_s, "modules": self.modules}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def pid(self) -> int | None:
        """The process id of the worker, or None if the worker is not running."""
        return None if self._process is None else self._process.pid

    @property
    def generation(self) -> int | None:
        """The running process's generation number (see :meth:`ensure_running`), or None."""
        return None if self._process is None else self._generation

    def next_env_number(self) -> int:
        """Return an unused env number for this worker."""
        return next(self._served)

    def ensure_running(self, what: str) -> int:
        """Start the process if it is not running, and return its generation number.

        Raises:
            EnvBackendError: if the process does not start.
            WorkersFailed: if starting it has failed too often.
        """
        with self.lock:
            if self._process is None:
                if self._failures > 1:  # a missing resource may become available again
                    time.sleep(_WAIT_S * self._failures)
                try:
                    self._process = get_zygote().fork(self.modules)
                except (WireClosed, TimeoutError, OSError) as error:
                    self._raise_failure(
                        "begin", f"did not start: {error or 'it took too long'}", what, error
                    )
                self._generation = next(_numbers)
            return self._generation

    def ask(self, order: Order, what: str) -> WorkerAnswer | Refused:
        """Send a request to the process and return the result. ``what`` names the env in errors.

        Returns:
            The result, or the error that the engine itself raised.

        Raises:
            EnvBackendError: if the process is lost, or the engine breaks. All engines of the
                process are then lost, or only this engine.
            WorkersFailed: if this has happened too often, without a success in between.
        """
        with self.lock:
            assert self._process is not None
            process = self._process
            try:
                process.wire.send(order, self._timeout_s)
                reply: Reply = process.wire.receive(self._timeout_s)
            except TimeoutError as error:
                self._process = None
                process.kill()
                self._raise_failure(
                    order.hook, f"did not answer within {self._timeout_s:g} s", what, error
                )
            except WireClosed as error:
                self._process = None
                self._raise_failure(order.hook, process.wait_or_kill(), what, error)
            except BaseException:  # an interrupt: the next call would read a late answer
                self._process = None
                process.kill()
                raise
            if isinstance(reply, Broken):
                if reply.fatal:
                    self._process = None
                    process.close()
                logger.info("engine broke worker=%d traceback=%s", self.index, reply.traceback)
                self._raise_failure(order.hook, f"had an engine failure: {reply.error}", what, None)
            if order.hook == self._failed_in:
                self._failures = 0
            return reply

    def kill(self) -> None:
        """Kill the process, even if another thread is waiting for its response."""
        process = self._process
        if process is not None:
            process.send_sigkill()

    def close(self) -> None:
        """Stop the process. The next hook call starts a new process."""
        with self.lock:
            process, self._process = self._process, None
            if process is not None:
                process.close()

    def _raise_failure(
        self, hook: str, how: str, what: str, error: BaseException | None
    ) -> NoReturn:
        self._failures += 1
        self._failed_in = hook
        message = f"Worker process {self.index} of {what} {how}"
        if self._failures > RESTARTS:
            n, self._failures = self._failures, 0
            raise WorkersFailed(
                f"{message}. That makes {n} failures in a row. Find and fix the cause, or raise "
                "the time limit if the machine is slow."
            ) from error
        raise EnvBackendError(f"{message}. Reset the env to continue.") from error
