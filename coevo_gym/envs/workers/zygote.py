"""The process that worker processes are forked from.

A fork of the process that trains would inherit its threads' locks, its GPU and all its memory. A
fresh interpreter for each worker would spend seconds on imports, and hold a copy of all that it
imports. So one fresh process imports what engines need, has no threads, and is forked: a worker is
there in milliseconds, and shares the imported code.

It ends with the process that started it, and every worker ends with it.
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

from coevo_gym.envs.workers.serving import serve
from coevo_gym.envs.workers.wire import Wire, WireClosed

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = 500
"""Where memory runs out the kernel takes a worker, whose loss is mended, and not the trainer."""

logger = logging.getLogger(__name__)


class Fork(NamedTuple):
    """An order to fork a worker; a descriptor of its socket follows.

    Attributes:
        modules: what is imported before.
        path: ``sys.path`` of the process that asks.
        environment: its environment.
        folder: its working directory.
    """

    modules: tuple[str, ...]
    path: Sequence[str]
    environment: Mapping[str, str]
    folder: str


class Bury(NamedTuple):
    """An order to kill a worker, if it lives, and to tell how it ended."""

    pid: int


def main() -> None:
    """Obey orders until the process that gives them is gone."""
    control, parent = int(sys.argv[1]), int(sys.argv[2])
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        return
    if os.getppid() != parent:
        return  # it has ended already, and its number is another's
    Zygote(Wire(socket.socket(fileno=control)), watched).serve()


class Zygote:
    """Forks workers, and buries them.

    Args:
        control: where orders come from.
        parent: pidfd of the process that gives them: its end is ours.
    """

    def __init__(self, control: Wire, parent: int) -> None:
        self._control = control
        self._parent = parent
        self._workers: dict[int, int] = {}  # pidfd -> pid
        self._ended: dict[int, int] = {}  # pid -> wait status, until somebody asks

    def serve(self) -> None:
        """Obey orders until the parent hangs up or dies; no worker outlives this."""
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
                    self._bury(dead)
                if self._control.fileno() in ready:
                    self._obey(self._control.receive())
        except WireClosed:
            pass  # the parent needs us no more
        finally:
            for worker in list(self._workers):
                self._bury(worker)

    def _obey(self, order: Fork | Bury) -> None:
        if isinstance(order, Fork):
            self._fork(order, self._control.receive_descriptor())
            return
        for worker, pid in list(self._workers.items()):
            if pid == order.pid:
                self._bury(worker)
        self._control.send(self._ended.pop(order.pid, None))

    def _fork(self, order: Fork, descriptor: int) -> None:
        sys.path[:] = order.path
        for module in order.modules:
            try:
                importlib.import_module(module)
            except Exception:  # the worker needs it too, and can tell of it
                logger.warning("not imported module=%s", module, exc_info=True)
        gc.collect()
        gc.freeze()  # what is there now is shared: looking through it would copy it
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                for inherited in (self._parent, self._control.fileno(), *self._workers):
                    os.close(inherited)
                _settle_in(order, zygote)
                serve(Wire(socket.socket(fileno=descriptor)))
            finally:
                os._exit(1)
        os.close(descriptor)
        worker = os.pidfd_open(pid)
        self._workers[worker] = pid
        self._control.send(pid)
        self._control.send_descriptor(worker)

    def _bury(self, worker: int) -> None:
        """Kill a worker with all that it started in its group, and keep how it ended."""
        pid = self._workers.pop(worker)
        with suppress(ProcessLookupError):  # it has not come to have a group yet
            os.killpg(pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._ended[pid] = os.waitpid(pid, 0)[1]
        os.close(worker)


def _settle_in(order: Fork, zygote: int) -> None:
    """Make a fork a process of its own, in the surroundings of who asked for it."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != zygote:
        os._exit(0)
    with suppress(OSError):  # a kernel without it
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    os.environ.clear()
    os.environ.update(order.environment)
    with suppress(OSError):  # it has been removed
        os.chdir(order.folder)
