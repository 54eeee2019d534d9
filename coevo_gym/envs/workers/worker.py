"""A place for a worker process: when one is lost, another is started there."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import Any, NoReturn

from coevo_gym.core.errors import EnvBackendError, WorkersFailed
from coevo_gym.envs.workers.serving import Answer, Broken, Order, Refused, Reply
from coevo_gym.envs.workers.starting import Process, zygote
from coevo_gym.envs.workers.wire import WireClosed

RESTARTS = 3
"""How often a worker that does nothing but fail is replaced before that is an error."""
_WAIT_S = 0.2

logger = logging.getLogger(__name__)
_numbers = itertools.count(1)


class Worker:
    """One worker process at a time. It does one thing at a time; threads wait for their turns.

    Args:
        index: its number in its pool.
        timeout_s: how long an order may take.
        modules: what workers import once for all of them, before they begin.

    Attributes:
        lock: held by who uses the worker. The time that somebody waits for it does not count.
        modules: see above; whoever puts an env there may add some.
    """

    def __init__(self, index: int, timeout_s: float, modules: tuple[str, ...] = ()) -> None:
        self.index = index
        self.modules = modules
        self.lock = threading.RLock()
        self._timeout_s = timeout_s
        self._process: Process | None = None
        self._generation = 0
        self._seats = itertools.count()
        self._failures = 0  # with no success of that hook in between
        self._failed_in = ""

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no process yet."""
        return {"index": self.index, "timeout_s": self._timeout_s, "modules": self.modules}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def pid(self) -> int | None:
        """Number of the process, None if there is none now."""
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> int | None:
        """What :meth:`generation` gave for the process that runs; None if none does."""
        return None if self._process is None else self._generation

    def seat(self) -> int:
        """A number for an env that is to live here."""
        return next(self._seats)

    def generation(self, what: str) -> int:
        """Number of the process that runs, which is started if there is none.

        Args:
            what: what it is needed for, for messages.

        Raises:
            EnvBackendError: if it does not start.
            WorkersFailed: if that has happened too often.
        """
        with self.lock:
            if self._process is None:
                if self._failures > 1:  # what is lacking may come back
                    time.sleep(_WAIT_S * self._failures)
                try:
                    self._process = zygote().fork(self.modules)
                except (WireClosed, TimeoutError, OSError) as error:
                    self._fail(
                        "begin", f"did not start: {error or 'it took too long'}", what, error
                    )
                self._generation = next(_numbers)
            return self._generation

    def ask(self, order: Order, what: str) -> Answer | Refused:
        """Have something done in the process that runs.

        Args:
            order: what.
            what: the same in words, for messages.

        Returns:
            What came of it, or the error that the engine itself has raised.

        Raises:
            EnvBackendError: if the process is lost, or its engine breaks. Nothing that the process
                held is left then, or nothing of that engine.
            WorkersFailed: if that has happened too often, with nothing done in between.
        """
        with self.lock:
            assert self._process is not None
            process = self._process
            try:
                process.wire.send(order, self._timeout_s)
                reply: Reply = process.wire.receive(self._timeout_s)
            except TimeoutError as error:
                self._leave()
                process.kill()
                self._fail(order.hook, f"gave no answer in {self._timeout_s:g} s", what, error)
            except WireClosed as error:
                self._leave()
                self._fail(order.hook, process.how_it_ended(), what, error)
            except BaseException:  # an interrupt: what comes now would be taken for another answer
                self._leave()
                process.kill()
                raise
            if isinstance(reply, Broken):
                if reply.fatal:
                    self._leave()
                    process.close()
                logger.info("engine broke worker=%d traceback=%s", self.index, reply.traceback)
                self._fail(order.hook, f"has an engine that broke: {reply.error}", what, None)
            if order.hook == self._failed_in:
                self._failures = 0
            return reply

    def interrupt(self) -> None:
        """Kill the process under whoever waits for its answer in another thread."""
        process = self._process
        if process is not None:
            process.interrupt()

    def close(self) -> None:
        """End the process; the next order starts another one."""
        with self.lock:
            process, self._process = self._process, None
            if process is not None:
                process.close()

    def _leave(self) -> None:
        self._process = None

    def _fail(self, hook: str, how: str, what: str, error: BaseException | None) -> NoReturn:
        self._failures += 1
        self._failed_in = hook
        told = f"Worker process {self.index} of {what} {how}"
        if self._failures > RESTARTS:
            n, self._failures = self._failures, 0
            raise WorkersFailed(
                f"{told}. That is the {n}th failure in a row, so it is no accident: look for the "
                "cause, or raise the time limit if the machine is slow."
            ) from error
        raise EnvBackendError(f"{told}. The next reset starts another one.") from error
