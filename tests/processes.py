"""Processes that start at once, because they are forked from one that has imported the package.

Importing PyTorch and the package takes seconds, and the tests start hundreds of processes. A forked
process is one like any other: it can be interrupted, killed and resumed. Nothing has been computed
in it, and it has its own folder, environment and output.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

_ROOT = Path(__file__).parents[1]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.preloaded"])
_READ_AT_START = ("PYTHON", "OMP_", "NPY_", "OPENBLAS_", "GLIBC_", "LD_")
"""Beginnings of the variables that are read when a process starts or first imports a library.

PyTorch reads those that choose its kernels when it first computes.
"""
_AT_START = dict(os.environ)


def run(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str = "",
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run a Python command (``-m module …`` or ``-c code …``) to its end, and return its output.

    A process whose environment must differ from the start on is a new one.
    """
    environment = dict(os.environ if env is None else env)
    if not _can_be_forked(environment):
        return subprocess.run(
            [sys.executable, *command],
            cwd=cwd,
            env=environment,
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    with TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("in", "out", "err")]
        files[0].write_text(input)
        streams = [str(file) for file in files]
        process = _fork(command, cwd or Path.cwd(), environment, streams)
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(command, timeout)
        texts = [file.read_text() if file.exists() else "" for file in files[1:]]
    return subprocess.CompletedProcess(list(command), process.exitcode, *texts)


def start(command: Sequence[str], cwd: Path) -> Forked | subprocess.Popen[str]:
    """Start a Python command, with both of its outputs in one pipe; see :func:`run`."""
    if _can_be_forked(os.environ):
        return Forked(command, cwd)
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )


class Forked:
    """A running Python command, with both of its outputs in one pipe.

    Attributes:
        stdin: pipe to the process, as text.
        stdout: pipe from the process, as text.
        pid: process id.
    """

    def __init__(self, command: Sequence[str], cwd: Path) -> None:
        theirs_in, ours_in = _CONTEXT.Pipe(duplex=False)
        ours_out, theirs_out = _CONTEXT.Pipe(duplex=False)
        with ours_in, ours_out:
            with theirs_in, theirs_out:
                streams = [theirs_in, theirs_out, theirs_out]
                self._process = _fork(command, cwd, dict(os.environ), streams)
            self.stdin: IO[str] = os.fdopen(os.dup(ours_in.fileno()), "w", buffering=1)
            self.stdout: IO[str] = os.fdopen(os.dup(ours_out.fileno()), "r")
        assert self._process.pid is not None
        self.pid = self._process.pid

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def poll(self) -> int | None:
        """Return the exit code, or None while the process is running."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end; its exit code, negative for a signal."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError(f"process {self.pid} is still running")
        self.stdin.close()
        self.stdout.close()
        return self._process.exitcode


def _can_be_forked(environment: Mapping[str, str]) -> bool:
    """Return True if nothing differs that a forked process would have read already."""
    names = (name for name in {*environment, *_AT_START} if name.startswith(_READ_AT_START))
    return all(environment.get(name) == _AT_START.get(name) for name in names)


def _fork(
    command: Sequence[str],
    cwd: Path,
    environment: dict[str, str],
    streams: Sequence[Connection | str],
) -> multiprocessing.process.BaseProcess:
    process = _CONTEXT.Process(
        target=_run_in_fork, args=(list(command), str(cwd), environment, streams)
    )
    process.start()
    return process


def _run_in_fork(
    command: list[str], cwd: str, environment: dict[str, str], streams: Sequence[Connection | str]
) -> None:
    """Run a command in a process that has just been forked."""
    for number, stream in enumerate(streams):
        if isinstance(stream, str):
            opened = os.open(stream, os.O_RDWR | os.O_CREAT, 0o600)
            os.dup2(opened, number)
            os.close(opened)
        else:
            os.dup2(stream.fileno(), number)
    for stream in streams:
        if isinstance(stream, Connection) and not stream.closed:
            stream.close()
    sys.stdin = os.fdopen(0, "r", closefd=False)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    kind, what, *arguments = command
    try:
        if kind == "-m":
            sys.argv = [what, *arguments]
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *arguments]
            exec(what, {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()  # which a process of multiprocessing does not do by itself
