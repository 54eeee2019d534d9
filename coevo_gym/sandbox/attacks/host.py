"""The setup for the generic attack suite. Payloads run as separate processes next to decoys."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import NamedTuple

from coevo_gym.core.errors import EnvBackendError
from coevo_gym.sandbox import Level, ResourceLimits, is_readable, launch, python_files, seccomp
from coevo_gym.sandbox.attacks.decoys import VARIABLE, Decoys, create_decoys
from coevo_gym.sandbox.attacks.payload import AttackRun, Payload
from coevo_gym.sandbox.process import socket_pair

LIMITS = ResourceLimits(memory_bytes=256 << 20, pids=32, scratch_bytes=16 << 20, open_files=256)
_PATIENCE_S = 60.0
_ENDLESS_S = 4.0
_KEPT_CHARS = 200
_MARKS = ("READY", "ENDLESS", "ORPHAN", "END")
_HAS_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT  # does not reap it, so its pid is not reused

_HARNESS = """
import ctypes, errno, json, os, signal, sys, types
channel = int(sys.argv[1])
def say(*words):
    text = (" ".join(map(str, words)) + "\\n").encode()
    while text: text = text[os.write(channel, text):]
def read(path):
    with open(path) as file: return file.read()
def wait_for_the_end():
    while os.read(channel, 1): pass
libc = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def call(name, *arguments):
    whole = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return checked(libc.syscall(ctypes.c_long(host.calls[name]), *whole))
def any_way(*ways):
    for way in ways:
        try: way() if callable(way) else call(*way)
        except (OSError, KeyError) as error: last = error
        else: return say("DONE")
    raise last
def late(*_): raise TimeoutError("too late")
order = b""
while not order.endswith(b"\\n"): order += os.read(channel, 65536)
order = json.loads(order)
host = types.SimpleNamespace(**order["facts"])
signal.signal(signal.SIGALRM, late)
say("READY")
try: exec(order["code"], globals())
except BaseException as error: say(f"{type(error).__name__}: {error}")
say("END")
"""


class HostObservations(NamedTuple):
    """The state of an attack payload and the host, as observed after the attack.

    Attributes:
        said: output of the payload.
        afterwards: output of the payload's remaining processes after it was killed.
        survived: True if the payload was still running when it should have ended: after its own
            time limit (sandbox off), or after the sandbox was killed (sandbox on).
        flood: number of output bytes stored on the host.
        host: the decoys after the attack.
    """

    said: str
    afterwards: str
    survived: bool
    flood: int
    host: Decoys


def is_secret_stolen(seen: HostObservations) -> bool:
    """Return True if the attack payload printed the secret."""
    return seen.host.token in seen.said


def reports_success(seen: HostObservations) -> bool:
    """Return True if the attack payload reports success. Only the payload can see some effects."""
    return "DONE\n" in seen.said


class _Running(NamedTuple):
    """A process that runs an attack payload."""

    kill: Callable[[], object]
    alive: Callable[[], bool]
    flood: Callable[[], int]


class HostSetup:
    """A harness that runs attack payloads with or without the sandbox.

    A payload can use ``host`` (see :meth:`Decoys.facts`), ``say``, ``read``, ``libc``, ``checked``,
    ``call`` to make a system call by name, ``any_way`` to print DONE as soon as one of several
    calls works, and ``wait_for_the_end``. It prints ENDLESS before an endless loop, and ORPHAN if
    it leaves a process behind that will write later.
    """

    def __init__(self, level: Level) -> None:
        self._level = level

    def run(self, payload: Payload[HostObservations], *, protected: bool) -> AttackRun:
        """Run an attack payload once, with or without the sandbox. See ``Setup``."""
        with create_decoys() as targets, socket_pair() as (ours, theirs):
            start = _start_sandboxed if protected else _start_unprotected
            with start(theirs, targets, self._level) as running:
                theirs.close()
                own = str(targets.folder / "scratch")
                facts = {
                    **targets.facts(),
                    "scratch": "/tmp" if protected else own,  # noqa: S108
                    "library": sys.base_prefix,
                    "calls": seccomp.call_numbers(),
                    "limits": LIMITS._asdict(),
                }
                order = json.dumps({"facts": facts, "code": payload.code})
                with suppress(BrokenPipeError):  # it did not start, which is detected below
                    ours.sendall(order.encode() + b"\n")
                seen = _observe_until_killed(ours, running, targets, protected)
                worked = payload.sign(seen)
                ours.close()  # its remaining processes wait for that
        lines = [line for line in seen.said.splitlines() if line not in _MARKS]
        if not seen.said.startswith("READY"):
            raise EnvBackendError(f"The attack {payload.name!r} did not run. Output: {lines}")
        # The output of a successful attack may contain secrets, so it is dropped.
        return AttackRun(worked, "" if worked or not lines else lines[-1][:_KEPT_CHARS])


def _observe_until_killed(
    ours: socket.socket, running: _Running, targets: Decoys, protected: bool
) -> HostObservations:
    """Read an attack payload's output, kill the payload, and return the observations."""
    output = _read_output(ours, 0 if protected else _ENDLESS_S)
    if protected:
        running.kill()
    survived = running.alive() and "\nEND\n" not in output
    if not protected:
        running.kill()
    afterwards = _read_next(ours, _PATIENCE_S) if "ORPHAN" in output else ""
    return HostObservations(output, afterwards, survived, running.flood(), targets)


def _read_output(ours: socket.socket, endless_s: float) -> str:
    """Collect an attack payload's output until the payload ends or a time limit expires."""
    output = ""
    end = monotonic() + _PATIENCE_S
    while not output.endswith(("\nEND\n", "\nORPHAN\n")):
        text = _read_next(ours, max(0.0, end - monotonic()))
        if not text:
            break
        output += text
        if output.endswith("\nENDLESS\n"):
            end = monotonic() + endless_s
    return output


def _read_next(ours: socket.socket, timeout_s: float) -> str:
    """Return the payload's next output. Return "" at its end or after the timeout."""
    if not is_readable(ours, timeout_s):
        return ""
    try:
        return ours.recv(1 << 16).decode(errors="replace")
    except ConnectionResetError:  # it ended with unread input
        return ""


@contextmanager
def _start_sandboxed(channel: socket.socket, targets: Decoys, level: Level) -> Iterator[_Running]:
    with launch(
        [sys.executable, "-I", "-c", _HARNESS, str(channel.fileno())],
        readable=(*python_files(), targets.readable.parent),
        pass_fds=(channel.fileno(), *targets.pass_fds),
        limits=LIMITS,
        level=level,
    ) as sandboxed:
        yield _Running(
            kill=sandboxed.kill,
            alive=lambda: sandboxed.poll() is None,
            flood=lambda: len(sandboxed.read_stderr()),
        )


@contextmanager
def _start_unprotected(channel: socket.socket, targets: Decoys, _: Level) -> Iterator[_Running]:
    """Start a subprocess without a sandbox, in a process group of its own."""
    for descriptor in (channel.fileno(), *targets.pass_fds):
        os.set_inheritable(descriptor, True)
    output = targets.folder / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-c", _HARNESS, str(channel.fileno())],
            stdout=file,
            stderr=file,
            env={**os.environ, VARIABLE: targets.token},
            cwd=targets.folder,
            close_fds=False,
            start_new_session=True,
        )
    try:
        yield _Running(
            kill=process.kill,
            alive=lambda: os.waitid(os.P_PID, process.pid, _HAS_ENDED) is None,
            flood=lambda: output.stat().st_size,
        )
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
