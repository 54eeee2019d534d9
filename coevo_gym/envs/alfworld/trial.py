"""Play commands on a problem that nobody has proven yet, where it can do no harm.

On a bad problem the planner's translator may exit this very process, or take forever. So a worker
process plays it, under a time limit; it serves one trial after the other, and a new one takes its
place when it is lost.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

from coevo_gym.core.errors import EnvBackendError, TaskError
from coevo_gym.envs.alfworld.engine.translation import fast_downward

LIMIT_S = 60.0
_TOLD = frozenset({"HOME", "LANG", "PATH", "PYTHONHASHSEED", "TMPDIR", "TZ", "VIRTUAL_ENV"})
_TOLD_OF, _SETTINGS = ("COEVO_", "LC_", "LD_", "XDG_"), "COEVO_CFG__"
_SERVE = "from coevo_gym.envs.alfworld import engine, trial; trial.serve()"


class Trial(NamedTuple):
    """What came of playing commands.

    Attributes:
        won: whether the goal held before any command, and after each up to the first that was not
            admissible.
        fault: why the problem could not be played, or "".
    """

    won: tuple[bool, ...]
    fault: str = ""


def try_out(
    domain: str,
    grammar: str,
    problem: str,
    commands: Sequence[str],
    *,
    timeout_s: float = LIMIT_S,
) -> Trial:
    """Play commands on a problem in a worker process.

    Args:
        domain: PDDL of the domain.
        grammar: text of the grammar; it is evaluated, so never one that a model wrote.
        problem: PDDL of the problem.
        commands: what to play.
        timeout_s: time limit.

    Raises:
        BenchmarkNotInstalled: if the engine is not there.
        EnvBackendError: if no worker can be started, or one is killed from outside.
    """
    fast_downward()
    return _worker(os.getpid()).try_out(domain, grammar, problem, commands, timeout_s)


class _Worker:
    """A process that plays, started when it is needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._owner = os.getpid()
        atexit.register(self._exit)

    def try_out(
        self, domain: str, grammar: str, problem: str, commands: Sequence[str], timeout_s: float
    ) -> Trial:
        """See :func:`try_out`."""
        job = json.dumps([domain, grammar, problem, list(commands), timeout_s]).encode()
        with self._lock:
            process = self._running()
            reply = b""
            try:
                with _deadline(process, timeout_s) as late:
                    reply = _exchange(process, job + b"\n")
            finally:
                if not reply or late.is_set():
                    self._stop()
        if reply:
            won, fault = json.loads(reply)
            return Trial(tuple(won), fault)
        if process.returncode == -signal.SIGKILL and not late.is_set():
            raise EnvBackendError(
                "The process that tries out ALFWorld tasks was killed from outside, as happens "
                "where memory is short. Free some, and try again."
            )
        return Trial((), _loss(process.returncode, late.is_set(), timeout_s))

    def _running(self) -> subprocess.Popen[bytes]:
        """The process; a new one if there is none, or if it has died."""
        if self._process is None or self._process.poll() is not None:
            self._stop()
            self._process = _started()
        return self._process

    def _stop(self) -> None:
        """Kill the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _exit(self) -> None:
        if self._owner == os.getpid():  # a fork exits, too, and the process is not its own
            self._stop()


@cache
def _worker(owner: int) -> _Worker:
    """The worker of a process: a fork does not share its parent's."""
    return _Worker()


def _started() -> subprocess.Popen[bytes]:
    """A new process, ready to play."""
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", _SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=worker_environment(),
        start_new_session=True,
    )
    with _deadline(process, LIMIT_S) as late:
        ready = _exchange(process)
    if not ready:
        process.communicate()
        raise EnvBackendError(
            f"The process that tries out ALFWorld tasks does not start: "
            f"{_loss(process.returncode, late.is_set(), LIMIT_S)}. `coevo doctor` may tell why."
        )
    return process


def worker_environment() -> dict[str, str]:
    """The environment variables of the process: where things are, and none of our secrets."""
    told = {
        name: value
        for name, value in os.environ.items()
        if name in _TOLD or (name.startswith(_TOLD_OF) and not name.startswith(_SETTINGS))
    }
    return {**told, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@contextmanager
def _deadline(process: subprocess.Popen[bytes], seconds: float) -> Iterator[threading.Event]:
    """A time limit on a scope: then the process is killed, and the event is set."""
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()
        timer.join()


def _exchange(process: subprocess.Popen[bytes], line: bytes = b"") -> bytes:
    """Send a line; returns the line that comes next, b"" if the process ends first."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except BrokenPipeError:
        return b""
    return process.stdout.readline()


def _loss(code: int, late: bool, timeout_s: float) -> str:
    """Why a worker was lost, in words."""
    if late:
        return f"the engine took longer than {timeout_s:g} s"
    how = f"of signal {-code}" if code < 0 else f"with exit code {code}"
    return f"the engine died {how}"


def serve() -> None:
    """Play what comes in, a line of JSON each, until the pipe is closed."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the translator prints
    trial = Trial(())  # an empty one says that all is ready
    while True:
        answers.write(json.dumps(trial).encode() + b"\n")
        answers.flush()
        line = sys.stdin.buffer.readline()
        if not line:
            return
        domain, grammar, problem, commands, timeout_s = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, 2 * timeout_s)  # ends it, should the parent be gone
        trial = _play(domain, grammar, problem, commands)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _play(domain: str, grammar: str, problem: str, commands: Sequence[str]) -> Trial:
    """Play commands in this process."""
    from coevo_gym.envs.alfworld.engine.game import Game, open_scene

    try:
        game = Game(open_scene(domain, grammar, problem), "")
        won = [game.won]
        for command in commands:
            if not game.step(command):
                break
            won.append(game.won)
    except (EnvBackendError, TaskError) as error:
        return Trial((), str(error))
    except (Exception, SystemExit) as error:
        return Trial((), f"{type(error).__name__}: {error}")
    return Trial(tuple(won))
