"""The trusted processes: one imports the engine, and its forks each run one world.

They run in the engine's virtual environment; see
:mod:`coevo_gym.envs.appworld.engine.engine_pool`. Time stands still in a process with a world, so
none of them measures time.
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
"""Maximum address space of an engine: far more than it needs within the limits of a world."""
FILE_BYTES = 2 << 30
"""Maximum size of a file that it may write."""
WORN_BYTES = 256 << 20
"""Maximum growth in an episode after which an engine may be reused."""
_LIMITS = {resource.RLIMIT_AS: MEMORY_BYTES, resource.RLIMIT_FSIZE: FILE_BYTES}


def main() -> None:
    """Import the engine, then execute commands from the parent process until it exits."""
    control = _open_control(int(sys.argv[1]))
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
        pass  # the parent no longer needs this process
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _open_control(descriptor: int) -> Channel:
    connection = socket.socket(fileno=descriptor)
    return Channel(connection, max_bytes=ORDER_BYTES, takes_descriptors=True)


def _import_engine() -> None:
    """Load everything that a world needs, so that forks can share it."""
    gc.disable()
    from .world import preload

    preload()
    gc.enable()
    gc.collect()
    gc.freeze()


def _poll(*descriptors: int, wait: bool = True) -> set[int]:
    """Return the descriptors that have data to read or whose connection is closed."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(None if wait else 0)}


class Zygote:
    """A process that forks engine processes and shuts them down.

    Args:
        control: channel for commands.
        parent: pidfd of the process that sends commands; this process exits when it does.
        scratch: folder with the outputs of all engines.
    """

    def __init__(self, control: Channel, parent: int, scratch: Path) -> None:
        self._control = control
        self._parent = parent
        self._scratch = scratch
        self._engines: dict[int, int] = {}

    def serve(self) -> None:
        """Execute commands from the parent process. When it exits, shut down all engines."""
        try:
            while True:
                ready = _poll(self._parent, self._control.fileno(), *self._engines)
                if self._parent in ready:
                    return
                for dead in ready & self._engines.keys():
                    self._kill_engine(dead)
                if self._control.fileno() in ready:
                    self._control.read_available()
                    while self._control.has_message:
                        self._obey(self._control.take_message())
        finally:
            for engine in list(self._engines):
                self._kill_engine(engine)

    def _obey(self, order: dict[str, Any]) -> None:
        if order["op"] == "spawn":
            self._control.send({"pid": self._spawn(self._control.take_descriptor())})
        else:
            for engine, pid in list(self._engines.items()):
                if pid == order["pid"]:
                    self._kill_engine(engine)
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
                Engine(_open_control(descriptor)).serve()
            finally:
                os._exit(0)
        os.close(descriptor)
        self._engines[os.pidfd_open(pid)] = pid
        return pid

    def _kill_engine(self, engine: int) -> None:
        """Kill an engine if it is still running, and remove its files."""
        pid = self._engines.pop(engine)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(engine)
        shutil.rmtree(self._scratch / "experiments" / "outputs" / str(pid), ignore_errors=True)


class Engine:
    """The server for one world. It executes trusted commands and answers untrusted requests.

    Requests are answered only while a step is open. The end of a step reports its calls, and no
    call runs until the next step.
    """

    def __init__(self, control: Channel) -> None:
        from .world import World

        self._control = control
        self._apps: Channel | None = None
        self._in_step = False
        self._world: World = World(name=str(os.getpid()))

    def serve(self) -> None:
        """Execute commands and answer API requests until the connection is closed."""
        try:
            while True:
                order = self._answer_requests_until_order()
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
            return {**self._world.end_step(), "attached": self._apps is not None}
        if op == "end":
            self._attach(None)
        answer: dict[str, Any] = getattr(self._world, op)(**arguments)
        if op == "end":
            answer["worn"] = self._world.grown_bytes > WORN_BYTES or self._world.spoilt
        return answer

    def _answer_requests_until_order(self) -> dict[str, Any]:
        """Answer API requests until a command arrives, and return the command."""
        while not self._control.has_message:
            apps = self._apps if self._in_step else None
            waiting = apps is not None and apps.has_message
            others = () if apps is None or waiting else (apps.fileno(),)
            control = self._control.fileno()
            if control in _poll(control, *others, wait=not waiting):
                self._control.read_available()
            elif apps is not None:
                self._answer_request(apps)
        return self._control.take_message()

    def _attach(self, descriptor: int | None) -> None:
        """Replace the socket used for API requests. None only closes the old socket."""
        self._in_step = False
        if self._apps is not None:
            self._apps.close()
            self._apps = None
        if descriptor is not None:
            connection = socket.socket(fileno=descriptor)
            self._apps = Channel(connection, max_bytes=REQUEST_BYTES)

    def _answer_request(self, apps: Channel) -> None:
        """Answer a request. Disconnect a client that breaks the protocol or exhausts memory."""
        try:
            if not apps.has_message:
                apps.read_available()
            if apps.has_message:
                request = apps.take_message()
                apps.send({"id": request.get("id"), **self._world.answer(request)})
        except (ChannelError, MemoryError, RecursionError):
            self._attach(None)
