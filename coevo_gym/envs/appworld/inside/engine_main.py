"""The trusted processes: one that has imported the engine, and its forks, a world in each.

Runs in the engine's own virtual environment, see :mod:`coevo_gym.envs.appworld.engine.pool`. Time
stands still in a process that holds a world, so none of them measures time.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import shutil
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .channel import Channel, ChannelError
from .parent import die_with

if TYPE_CHECKING:
    from .world import World

ORDER_BYTES = 1 << 24
REQUEST_BYTES = 1 << 20
MEMORY_BYTES = 8 << 30
"""Address space of an engine: far more than it needs within the limits that a world keeps."""
FILE_BYTES = 2 << 30
"""Longest file that it may write."""
WORN_BYTES = 256 << 20
"""By how much it may have grown in an episode to be used for the next."""
_LIMITS = {resource.RLIMIT_AS: MEMORY_BYTES, resource.RLIMIT_FSIZE: FILE_BYTES}


def main() -> None:
    """Import the engine, then fork a copy for each order, until the parent is gone."""
    control = _control(int(sys.argv[1]))
    parent = os.pidfd_open(int(sys.argv[2]))
    scratch = Path(sys.argv[3])
    try:
        _import_engine()
    except Exception:
        control.send({"fault": traceback.format_exc()})
        return
    try:
        control.send({"ready": True})
        Zygote(control, parent, scratch).serve()
    except ChannelError:
        pass  # the parent needs us no more
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _control(descriptor: int) -> Channel:
    connection = socket.socket(fileno=descriptor)
    return Channel(connection, max_bytes=ORDER_BYTES, takes_descriptors=True)


def _import_engine() -> None:
    """Load all that a world needs; a fork then shares it."""
    gc.disable()
    from .world import preload

    preload()
    gc.enable()
    gc.collect()
    gc.freeze()


class Zygote:
    """Makes engines, and buries them.

    Args:
        control: where orders come from.
        parent: pidfd of the process that gives them: its end is ours.
        scratch: the folder with the outputs of all engines.
    """

    def __init__(self, control: Channel, parent: int, scratch: Path) -> None:
        self._control = control
        self._parent = parent
        self._scratch = scratch
        self._engines: dict[int, int] = {}

    def serve(self) -> None:
        """Obey orders until the parent hangs up or dies; no engine outlives this."""
        try:
            while True:
                poll = select.poll()
                for descriptor in (self._parent, self._control.fileno(), *self._engines):
                    poll.register(descriptor, select.POLLIN)
                ready = {descriptor for descriptor, _ in poll.poll()}
                if self._parent in ready:
                    return
                for dead in ready & self._engines.keys():
                    self._bury(dead)
                if self._control.fileno() in ready:
                    self._control.fill()
                    while self._control.pending:
                        self._obey(self._control.take())
        finally:
            for engine in list(self._engines):
                self._bury(engine)

    def _obey(self, order: dict[str, Any]) -> None:
        if order["op"] == "spawn":
            self._control.send({"pid": self._spawn(self._control.take_descriptor())})
        else:
            for engine, pid in list(self._engines.items()):
                if pid == order["pid"]:
                    self._bury(engine)
            self._control.send({})

    def _spawn(self, descriptor: int) -> int:
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                for inherited in (self._parent, self._control.fileno(), *self._engines):
                    os.close(inherited)
                die_with(zygote)
                for limit, size in _LIMITS.items():
                    resource.setrlimit(limit, (size, size))
                Engine(_control(descriptor)).serve()
            finally:
                os._exit(0)
        os.close(descriptor)
        self._engines[os.pidfd_open(pid)] = pid
        return pid

    def _bury(self, engine: int) -> None:
        """Kill an engine, if it lives, and remove what it leaves."""
        pid = self._engines.pop(engine)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(engine)
        shutil.rmtree(self._scratch / "experiments" / "outputs" / str(pid), ignore_errors=True)


class Engine:
    """Serves a world: orders from the trusted side, requests from the other.

    Requests are answered while a step is open, and only then: what has been called is told when the
    step is closed, and nothing is called until the next.

    Args:
        control: where orders come from.
    """

    def __init__(self, control: Channel) -> None:
        from .world import World

        self._control = control
        self._apps: Channel | None = None
        self._in_step = False
        self._world: World = World(name=str(os.getpid()))

    def serve(self) -> None:
        """Obey orders, and answer requests in between, until the other end hangs up."""
        try:
            while True:
                order = self._next_order()
                try:
                    answer = self._obey(**order)
                except Exception:
                    answer = {"fault": traceback.format_exc()}
                self._control.send(answer)
        except ChannelError:
            self._world.end()

    def _obey(self, op: str, **arguments: Any) -> dict[str, Any]:
        if op == "attach":
            self._attach(self._control.take_descriptor())
            return {}
        if op == "step_begin":
            self._in_step = True
            return {}
        if op == "step_end":
            self._in_step = False
            return {**self._world.step_end(), "attached": self._apps is not None}
        if op == "end":
            self._attach(None)
        answer: dict[str, Any] = getattr(self._world, op)(**arguments)
        if op == "end":
            answer["worn"] = self._world.grown_bytes > WORN_BYTES or self._world.spoilt
        return answer

    def _next_order(self) -> dict[str, Any]:
        """Answer the requests of a step until an order comes: orders go first."""
        while not self._control.pending:
            poll = select.poll()
            poll.register(self._control, select.POLLIN)
            apps = self._apps if self._in_step else None
            waiting = apps is not None and apps.pending
            if apps is not None and not waiting:
                poll.register(apps, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll(0 if waiting else None)}
            if self._control.fileno() in ready:
                self._control.fill()
            elif apps is not None:
                self._serve_apps(apps)
        return self._control.take()

    def _attach(self, descriptor: int | None) -> None:
        """Serve requests on a new socket from the next step on; None for nowhere."""
        self._in_step = False
        if self._apps is not None:
            self._apps.close()
            self._apps = None
        if descriptor is not None:
            connection = socket.socket(fileno=descriptor)
            self._apps = Channel(connection, max_bytes=REQUEST_BYTES)

    def _serve_apps(self, apps: Channel) -> None:
        """Answer one request; whoever breaks the rules, or asks for too much, is cut off."""
        try:
            if not apps.pending:
                apps.fill()
            if apps.pending:
                request = apps.take()
                apps.send({"id": request.get("id"), **self._world.answer(request)})
        except (ChannelError, MemoryError, RecursionError):
            self._attach(None)
