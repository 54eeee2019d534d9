"""A sandboxed program: how it starts, and what is left when it ends."""

from __future__ import annotations

import os
import queue
import re
import resource
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self

from coevo_gym.core.errors import EnvBackendError
from coevo_gym.sandbox import cgroup
from coevo_gym.sandbox.level import DEFAULT_LIMITS, Level, Limits, rlimits
from coevo_gym.sandbox.ready import readable

PATIENCE_S = 30.0
_SAID_BYTES = 1 << 16
_Job = Callable[[], subprocess.Popen[bytes]]


class Program(NamedTuple):
    """What to run, see :func:`coevo_gym.sandbox.launch`."""

    command: Sequence[str]
    readable: Sequence[Path] = ()
    hidden: Sequence[Path] = ()
    pass_fds: Sequence[int] = ()
    environment: Mapping[str, str] = {}
    limits: Limits = DEFAULT_LIMITS


class Sandboxed:
    """A program that runs in a sandbox, made by :func:`coevo_gym.sandbox.launch`.

    It ends when it is killed, when it is closed, or when the process that launched it ends.

    Attributes:
        level: how it is kept apart.
        pid: the process whose end is the end of all of them.
    """

    def __init__(
        self,
        level: Level,
        process: subprocess.Popen[bytes],
        pid: int,
        said: int,
        group: cgroup.Group | None,
    ) -> None:
        self.level = level
        self.pid = pid
        self._process = process
        self._root = os.pidfd_open(pid)
        self._said = said
        self._group = group
        self._lock = threading.Lock()
        self._closed = False

    def poll(self) -> int | None:
        """Its exit code, 128 + the signal if one killed it; None while it runs."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def wait(self, timeout_s: float) -> int | None:
        """Wait until it ends; returns its exit code, or None if it still runs then."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self.poll()

    def stderr(self) -> str:
        """What it has written to its standard error since the last call, 64 KiB at most.

        It is for people who look for a fault: the program could have written anything.
        """
        with self._lock:
            said = b""
            while not self._closed and len(said) < _SAID_BYTES and readable(self._said):
                chunk = os.read(self._said, _SAID_BYTES - len(said))
                if not chunk:
                    break
                said += chunk
        return said.decode(errors="replace")

    def kill(self) -> None:
        """Kill all its processes, and wait until they are gone. It may have ended before.

        Raises:
            EnvBackendError: if the kernel does not end them.
        """
        with self._lock:
            self._kill()

    def close(self) -> None:
        """Kill it, if it runs, and leave nothing behind. Closing it again does nothing."""
        with self._lock:
            if not self._closed:
                self._kill()
                self._closed = True
                os.close(self._root)
                os.close(self._said)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _kill(self) -> None:
        if self._closed:
            return
        # The first process of a process namespace takes all in it along, and is the last to end.
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._root, signal.SIGKILL)
        if self.level is Level.NONE and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        if not readable(self._root, PATIENCE_S):
            raise EnvBackendError(f"The sandboxed process {self.pid} outlives SIGKILL.")
        self._process.wait()
        if self._group is not None:
            self._group.remove()


def start(
    level: Level,
    program: Program,
    wrapped: Callable[[int], Sequence[str]],
    *,
    opening: bytes,
    stdin: int = subprocess.DEVNULL,
    extra_fds: Sequence[int] = (),
    first: Callable[[subprocess.Popen[bytes]], int] = lambda process: process.pid,
    release: Callable[[], None] = lambda: None,
) -> Sandboxed:
    """Start a program in its wrapping, and put limits on it before it runs.

    Args:
        level: the level that the wrapping makes.
        program: what to run.
        wrapped: the whole command, given the descriptor on which the wrapping waits.
        opening: what the wrapping waits for.
        stdin: its standard input.
        extra_fds: further descriptors that the wrapping needs.
        first: the process whose end is the end of all others, once it is there.
        release: the last thing to do, when the limits are on.

    Raises:
        EnvBackendError: if it does not start.
    """
    with ExitStack() as undo, pipe() as (gate_end, gate), pipe() as (said, said_end):
        group = cgroup.make(program.limits)
        if group is not None:
            undo.callback(group.remove)
        os.set_blocking(said_end.fileno(), False)  # who floods it loses what is too much

        def popen() -> subprocess.Popen[bytes]:
            return subprocess.Popen(  # noqa: S603
                wrapped(gate_end.fileno()),
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=said_end,
                pass_fds=(gate_end.fileno(), *extra_fds, *program.pass_fds),
                env=dict(program.environment),
                cwd="/",
                start_new_session=True,
            )

        process = _starter(os.getpid())(popen)
        undo.callback(process.wait)
        undo.callback(process.kill)
        gate_end.close()
        said_end.close()
        try:
            pid = first(process)
            if group is not None:
                group.add(pid)
            for limit, value in rlimits(program.limits).items():
                _lower(pid, limit, value)
            if group is None and level is Level.BUBBLEWRAP and counts_threads():
                _lower(pid, resource.RLIMIT_NPROC, program.limits.pids)
            gate.write(opening)
            gate.close()
            release()
            sandboxed = Sandboxed(level, process, pid, os.dup(said.fileno()), group)
        except OSError as error:
            process.kill()
            process.wait()
            why = b""
            while readable(said.fileno()) and (chunk := said.read(_SAID_BYTES)):
                why += chunk
            reason = why.decode(errors="replace").strip() or error
            raise EnvBackendError(f"The sandbox ({level}) does not start: {reason}") from error
        undo.pop_all()
    return sandboxed


def counts_threads() -> bool:
    """Whether the kernel itself caps the threads of a user namespace: since 5.14, not root's."""
    release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    return os.geteuid() != 0 and release >= (5, 14)


def _lower(pid: int, limit: int, value: int) -> None:
    """Put a limit on a process; it may have a lower one already."""
    _, hard = resource.prlimit(pid, limit)
    if hard == resource.RLIM_INFINITY or value < hard:
        resource.prlimit(pid, limit, (value, value))


@contextmanager
def pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """A pipe whose ends are closed after the block, if they have not been before."""
    reading, writing = os.pipe()
    with open(reading, "rb", 0) as reader, open(writing, "wb", 0) as writer:
        yield reader, writer


@cache
def _starter(owner: int) -> Callable[[_Job], subprocess.Popen[bytes]]:
    """What starts processes here; a fork does not share its parent's.

    The kernel sends the signal of a parent's death when the *thread* that forked ends: so one
    thread, which never ends, starts them all.
    """
    jobs: queue.SimpleQueue[tuple[_Job, Future[subprocess.Popen[bytes]]]] = queue.SimpleQueue()

    def serve() -> None:
        while True:
            job, future = jobs.get()
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)

    def submit(job: _Job) -> subprocess.Popen[bytes]:
        future: Future[subprocess.Popen[bytes]] = Future()
        jobs.put((job, future))
        return future.result()

    threading.Thread(target=serve, name="sandbox starter", daemon=True).start()
    return submit
