"""The set-up of the generic suite: payloads run as processes of their own, beside decoys."""

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
from coevo_gym.escapes.decoys import VARIABLE, Decoys, decoys
from coevo_gym.escapes.payload import Attempt, Payload
from coevo_gym.sandbox import Level, Limits, launch, python_files, readable, seccomp

LIMITS = Limits(memory_bytes=256 << 20, pids=32, scratch_bytes=16 << 20, open_files=256)
_PATIENCE_S = 60.0
_ENDLESS_S = 4.0
_KEPT_CHARS = 200
_MARKS = ("READY", "ENDLESS", "ORPHAN", "END")
_HAS_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT  # so that its number is not given away yet

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


class Seen(NamedTuple):
    """What is known after an attempt.

    Attributes:
        said: what the payload said.
        afterwards: what something of it said after it had been killed.
        survived: whether it still ran after its time: with the sandbox off, when the limit in
            its own process had passed; with it on, after the sandbox was killed.
        flood: how many bytes of its output lie on the host.
        host: the decoys, as they are then.
    """

    said: str
    afterwards: str
    survived: bool
    flood: int
    host: Decoys


def stolen(seen: Seen) -> bool:
    """Whether it has told the secret."""
    return seen.host.token in seen.said


def done(seen: Seen) -> bool:
    """Whether it says that it is done: for what only shows inside."""
    return "DONE\n" in seen.said


class _Running(NamedTuple):
    """A process that runs a payload."""

    kill: Callable[[], object]
    alive: Callable[[], bool]
    flood: Callable[[], int]


class HostSetup:
    """Runs payloads as a careless host would, and in the sandbox.

    A payload finds ``host`` (see :meth:`Decoys.facts`), ``say``, ``read``, ``libc``, ``checked``,
    ``call``, which makes a system call by name, ``any_way``, which says DONE as soon as one of
    several calls has worked, and ``wait_for_the_end``. It says ENDLESS before
    it goes on for ever, and ORPHAN if it leaves something behind that will speak up.
    """

    def __init__(self, level: Level) -> None:
        self._level = level

    def attempt(self, payload: Payload[Seen], *, protected: bool) -> Attempt:
        """See :class:`coevo_gym.escapes.Setup`."""
        with decoys() as targets, _socket_pair() as (ours, theirs):
            process = (
                _sandboxed(theirs, targets, self._level)
                if protected
                else _careless(theirs, targets)
            )
            with process as running:
                theirs.close()
                facts = targets.facts() | _facts(targets, protected)
                order = json.dumps({"facts": facts, "code": payload.code})
                with suppress(BrokenPipeError):  # it has not started, which shows below
                    ours.sendall(order.encode() + b"\n")
                seen = _watch(ours, running, targets, protected)
                worked = payload.sign(seen)
                ours.close()  # what is left of it waits for that
        lines = [line for line in seen.said.splitlines() if line not in _MARKS]
        if not seen.said.startswith("READY"):
            raise EnvBackendError(f"The attempt {payload.name!r} did not run, it said {lines}")
        # What it got hold of is nobody's business.
        return Attempt(worked, "" if worked or not lines else lines[-1][:_KEPT_CHARS])


def _watch(ours: socket.socket, running: _Running, targets: Decoys, protected: bool) -> Seen:
    """Hear it out, and kill it as this kind of host would."""
    said = _hear(ours, 0 if protected else _ENDLESS_S)
    if protected:
        running.kill()
    survived = running.alive() and "\nEND\n" not in said
    if not protected:
        running.kill()
    afterwards = _next(ours, _PATIENCE_S) if "ORPHAN" in said else ""
    return Seen(said, afterwards, survived, running.flood(), targets)


def _hear(ours: socket.socket, endless_s: float) -> str:
    """What it says until it ends, or says that it will not and a while has passed."""
    said = ""
    end = monotonic() + _PATIENCE_S
    while not said.endswith(("\nEND\n", "\nORPHAN\n")):
        text = _next(ours, max(0.0, end - monotonic()))
        if not text:
            break
        said += text
        if said.endswith("\nENDLESS\n"):
            end = monotonic() + endless_s
    return said


def _next(ours: socket.socket, timeout_s: float) -> str:
    """What comes next; "" if it ends, or time is up."""
    if not readable(ours, timeout_s):
        return ""
    try:
        return ours.recv(1 << 16).decode(errors="replace")
    except ConnectionResetError:  # it has ended with something unread
        return ""


def _facts(targets: Decoys, protected: bool) -> dict[str, object]:
    """What does not depend on the decoys alone."""
    return {
        "scratch": "/tmp" if protected else str(targets.folder / "scratch"),  # noqa: S108
        "library": sys.base_prefix,
        "calls": seccomp.numbers(),
        "limits": LIMITS._asdict(),
    }


@contextmanager
def _sandboxed(channel: socket.socket, targets: Decoys, level: Level) -> Iterator[_Running]:
    with launch(
        [sys.executable, "-I", "-c", _HARNESS, str(channel.fileno())],
        readable=(*python_files(), targets.given.parent),
        pass_fds=(channel.fileno(), *targets.pass_fds),
        limits=LIMITS,
        level=level,
    ) as sandboxed:
        yield _Running(
            kill=sandboxed.kill,
            alive=lambda: sandboxed.poll() is None,
            flood=lambda: len(sandboxed.stderr()),
        )


@contextmanager
def _careless(channel: socket.socket, targets: Decoys) -> Iterator[_Running]:
    """A subprocess as it is often started, except that a part of its tree can be cleaned up."""
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


@contextmanager
def _socket_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs
