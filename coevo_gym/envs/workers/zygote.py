"""The zygote: the process from which worker processes are forked.

Forking the training process would copy its threads' locks, its GPU state and all its memory. A
fresh interpreter per worker would spend seconds on imports and hold its own copy of every imported
module. The zygote is one fresh process without threads that imports the engines' modules once.
Forking it starts a worker in milliseconds, and all workers share the imported code.

The zygote exits with the process that started it, and every worker exits with the zygote.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from coevo_gym.envs.workers.serving import serve_and_exit
from coevo_gym.envs.workers.wire import Wire, WireClosed

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = 500
"""OOM score of workers: when memory runs out, the kernel kills a replaceable worker first."""

logger = logging.getLogger(__name__)


class Fork(NamedTuple):
    """A request to fork a worker. The file descriptor of the worker's socket follows.

    ``modules`` are imported before the fork. The other fields are ``sys.path``, environment
    variables and working directory of the requesting process.
    """

    modules: tuple[str, ...]
    path: Sequence[str]
    environment: Mapping[str, str]
    folder: str


class Bury(NamedTuple):
    """A request to kill a worker and report how it ended."""

    pid: int


def main() -> None:
    """Process requests until the requesting process has exited."""
    control, parent = int(sys.argv[1]), int(sys.argv[2])
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        return
    if os.getppid() != parent:
        return  # the parent has exited, and its process id was reused
    Zygote(Wire(socket.socket(fileno=control)), watched).serve()


class Zygote:
    """The zygote's main loop. It forks and reaps workers until its parent process exits."""

    def __init__(self, control: Wire, parent: int) -> None:
        self._control = control
        self._parent = parent
        self._workers: dict[int, int] = {}  # pidfd -> pid
        self._ended: dict[int, int] = {}  # pid -> wait status, until requested

    def serve(self) -> None:
        """Process requests until the parent disconnects or dies, then stop all workers."""
        try:
            self._control.send("ready")
            while True:
                poll = select.poll()
                for descriptor in (self._parent, self._control.fileno(), *self._workers):
                    poll.register(descriptor, select.POLLIN)
                ready = {descriptor for descriptor, _ in poll.poll()}
                if self._parent in ready:
                    return
                for dead in ready & self._workers.keys():
                    self._kill(dead)
                if self._control.fileno() in ready:
                    self._obey(self._control.receive())
        except WireClosed:
            pass  # the parent has disconnected
        finally:
            for worker in list(self._workers):
                self._kill(worker)

    def _obey(self, order: Fork | Bury) -> None:
        if isinstance(order, Fork):
            self._fork(order, self._control.receive_descriptor())
            return
        for worker, pid in list(self._workers.items()):
            if pid == order.pid:
                self._kill(worker)
        self._control.send(self._ended.pop(order.pid, None))

    def _fork(self, order: Fork, descriptor: int) -> None:
        sys.path[:] = order.path
        for module in order.modules:
            try:
                importlib.import_module(module)
            except Exception:  # the worker needs the module, too, and reports the error
                logger.warning("not imported module=%s", module, exc_info=True)
        gc.collect()
        gc.freeze()  # keeps the memory shared: a collection would write to it and copy it
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                for inherited in (self._parent, self._control.fileno(), *self._workers):
                    os.close(inherited)
                _set_up_worker(order, zygote)
                serve_and_exit(Wire(socket.socket(fileno=descriptor)))
            finally:
                os._exit(1)
        os.close(descriptor)
        worker = os.pidfd_open(pid)
        self._workers[worker] = pid
        self._control.send(pid)
        self._control.send_descriptor(worker)

    def _kill(self, worker: int) -> None:
        """Kill a worker and its process group, and store its wait status."""
        pid = self._workers.pop(worker)
        with suppress(ProcessLookupError):  # it has no process group yet
            os.killpg(pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._ended[pid] = os.waitpid(pid, 0)[1]
        os.close(worker)


def _set_up_worker(order: Fork, zygote: int) -> None:
    """Detach a forked process, and give it the requesting process's environment variables."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != zygote:
        os._exit(0)
    with suppress(OSError):  # the kernel does not support it
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    os.environ.clear()
    os.environ.update(order.environment)
    with suppress(OSError):  # the folder was removed
        os.chdir(order.folder)
