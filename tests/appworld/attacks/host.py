"""Worlds in which attacks run: the stock engine's world and coevo_gym's sandboxed world."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from coevo_gym.core.errors import EnvBackendError
from coevo_gym.envs.appworld.engine import prefix
from coevo_gym.envs.appworld.engine.engine_session import WorldSession
from coevo_gym.envs.appworld.inside.channel import Channel, ChannelError
from coevo_gym.sandbox import Level
from tests.appworld.attacks.seen import VARIABLE

_PATIENCE_S = 180.0
_LINE_BYTES = 1 << 24
_MAX_CHARS = 1 << 20
LOST = (ChannelError, EnvBackendError, TimeoutError)
"""Exceptions raised when a world is lost."""


class Looked(NamedTuple):
    """The state of a world after an attack: grade, changes and calls."""

    passed: bool
    changes: dict[str, Any]
    calls: tuple[str, ...]


class Host(Protocol):
    """A world and the process that runs code in it.

    Attributes:
        engine: pid of the process that has the databases.
        saved: folder in which that process saves its databases.
    """

    engine: int
    saved: Path

    def run(self, code: str) -> str:
        """Run code and return its output or its error."""
        ...

    def look(self) -> Looked:
        """Return the state of the world."""
        ...

    def close(self) -> None:
        """Close the world."""
        ...


class Ours:
    """A world in which model-written code runs in the sandbox."""

    def __init__(self, root: Path, task_id: str, level: Level) -> None:
        self._world = WorldSession(root, level)
        self._world.begin(task_id)
        assert self._world._engine is not None
        self.engine = self._world._engine.pid
        outputs = Path(f"/proc/{self.engine}/cwd").readlink() / "experiments" / "outputs"
        self.saved = outputs / str(self.engine) / "tasks" / task_id / "dbs"
        self._calls: list[str] = []

    def run(self, code: str) -> str:
        """Run code in the sandbox; see :class:`Host`."""
        ran = self._world.step(code, max_chars=_MAX_CHARS)
        self._calls += ran.calls
        return ran.output

    def look(self) -> Looked:
        """Return the state of the world; see :class:`Host`."""
        changes = self._world.diff().changes
        passed = all(test.passed for test in self._world.grade())
        return Looked(passed, changes, tuple(self._calls))

    def close(self) -> None:
        """Close the world; see :class:`Host`."""
        self._world.close()


class Stock:
    """An unsandboxed process in which the stock engine itself runs model-written code."""

    def __init__(self, spawn: Callable[[int], int], task_id: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.engine = spawn(theirs.fileno())
        self._channel = Channel(ours, max_bytes=_LINE_BYTES)
        self._channel.send({"task_id": task_id})
        self.saved = Path(self._channel.receive(_PATIENCE_S)["saved"])

    def run(self, code: str) -> str:
        """Run code in the engine's process; see :class:`Host`."""
        self._channel.send({"code": code})
        return str(self._channel.receive(_PATIENCE_S).get("output"))

    def look(self) -> Looked:
        """Return the state of the world; see :class:`Host`."""
        self._channel.send({})
        seen = self._channel.receive(_PATIENCE_S)
        if "passed" not in seen:
            raise ChannelError("the answer does not contain a grade")
        return Looked(seen["passed"], seen["changes"], tuple(seen["calls"]))

    def close(self) -> None:
        """Kill the process; see :class:`Host`."""
        self._channel.close()
        with suppress(ProcessLookupError):
            os.killpg(self.engine, signal.SIGKILL)


@contextmanager
def stock_engine(root: Path, token: str) -> Iterator[Callable[[int], int]]:
    """Start the stock engine and yield a function that forks one world per call."""
    folders = [str(Path(prefix.__file__).parents[1]), str(Path(__file__).parent)]
    main = f"import sys; sys.path += {folders!r}; from careless_main import main; main()"
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [str(prefix.engine_python()), "-s", "-c", main, str(theirs.fileno())],
            env={**prefix.engine_environment(root), VARIABLE: token},
            cwd=root,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    control = Channel(ours, max_bytes=_LINE_BYTES)

    def spawn(descriptor: int) -> int:
        control.send({"op": "spawn"}, [descriptor])
        return int(control.receive(_PATIENCE_S)["pid"])

    try:
        control.receive(_PATIENCE_S)
        yield spawn
    finally:
        control.shut_down()
        process.kill()
        process.wait()


def can_run_code(host: Host) -> bool:
    """Return True if the host can run code."""
    return host.run("print(6 * 7)").strip() == "42"


def still_works(host: Host) -> bool:
    """Return True if the host still responds and can run code."""
    try:
        return can_run_code(host)
    except LOST:
        return False
