"""The process that runs model-written code, seen from outside its sandbox."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coevo_gym.core.errors import EnvBackendError
from coevo_gym.envs.appworld.inside.channel import Channel, ChannelError
from coevo_gym.sandbox import Level, launch, python_files, readable

_MAIN = Path(__file__).parents[1] / "inside" / "executor_main.py"
_START_S = 180.0
_ADDRESS = re.compile(r"(?<= at )0x[0-9a-f]+(?=[>,])")
"""Of an object in memory, as it is told in angle brackets; it differs from run to run."""


class Said(NamedTuple):
    """What a piece of code led to.

    Attributes:
        output: what it printed, or its error.
        failed: whether it ended in an error.
    """

    output: str
    failed: bool


class Executor:
    """A process in the sandbox, whose variables persist from one piece of code to the next.

    Nothing that it says is believed beyond the text of an observation.

    Args:
        python: interpreter, by its real path, two floors above which its own files are.
        packages: folder of what code may import beside the standard library.
        hidden: folders that code must not read, wherever they lie.
        level: how to keep it apart; None for the strongest way that holds here.

    Attributes:
        apps: the other end of its way to the apps, for the engine.
    """

    def __init__(
        self,
        python: Path,
        packages: Path,
        hidden: Sequence[Path] = (),
        level: Level | None = None,
    ) -> None:
        ours, theirs = socket.socketpair()
        self.apps, asks = socket.socketpair()
        with theirs, asks:
            descriptors = (theirs.fileno(), asks.fileno())
            self._process = launch(
                [
                    *(str(python), "-S", "-s", "-P", "-B", str(_MAIN)),
                    *map(str, descriptors),
                    str(packages),
                ],
                readable=(_MAIN, packages, *python_files(python.parents[1])),
                hidden=hidden,
                pass_fds=descriptors,
                environment={"LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},
                level=level,
            )
        self._socket = ours
        self._count = 0

    @property
    def pid(self) -> int:
        """The outermost process."""
        return self._process.pid

    def start(self, datetime: str, seed: int, apps: Mapping[str, Sequence[str]]) -> None:
        """Set the clock and the names of the APIs; code can be run then.

        Raises:
            EnvBackendError: if it does not start.
        """
        channel = Channel(self._socket, max_bytes=1 << 16)
        try:
            channel.send({"op": "start", "datetime": datetime, "seed": seed, "apps": apps})
            channel.receive(_START_S)
        except (ChannelError, TimeoutError) as error:
            said = self._process.stderr().strip() or error
            self.kill()
            raise EnvBackendError(
                f"The sandboxed process that runs code does not start: {said}\n"
                "`coevo doctor` may tell why."
            ) from error

    def run(self, code: str, time_limit_s: float, max_chars: int) -> Said:
        """Run code and wait for its end.

        Raises:
            ChannelError: if the process has died, or says what it should not.
            TimeoutError: if it takes longer.
        """
        if readable(self._socket):
            raise ChannelError("it has ended, or has spoken unasked")
        channel = Channel(self._socket, max_bytes=12 * max_chars + (1 << 10))
        self._count += 1
        channel.send({"op": "run", "id": self._count, "code": code, "max_chars": max_chars})
        answer = channel.receive(time_limit_s)
        if answer.get("id") != self._count:
            raise ChannelError("it answers what was not asked")
        return _said(answer, max_chars)

    def kill(self) -> None:
        """End the process and all that it has started; nothing happens the second time."""
        self._process.close()
        self._socket.close()
        self.apps.close()


def _said(answer: Mapping[str, Any], max_chars: int) -> Said:
    output = answer.get("output")
    if not isinstance(output, str):
        raise ChannelError("its answer holds no text")
    output = _ADDRESS.sub("0x0", output)
    note = f"\n[cut: only {max_chars:,} characters are shown]"
    cut = answer.get("cut") is True or len(output) > max_chars
    return Said(output[:max_chars] + note if cut else output, bool(answer.get("error")))
