"""The client for the sandboxed process that runs model-written code."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from coevo_gym.core.errors import EnvBackendError
from coevo_gym.envs.appworld.inside.channel import Channel, ChannelError
from coevo_gym.sandbox import Level, is_readable, launch, python_files

_MAIN = Path(__file__).parents[1] / "inside" / "executor_main.py"
_START_S = 180.0
_ADDRESS = re.compile(r"(?<= at )0x[0-9a-f]+(?=[>,])")
"""An object's memory address, printed in angle brackets; it differs between runs."""


class Executor:
    """A sandboxed process whose variables persist from one piece of code to the next.

    Its messages are untrusted: they are used only as the text of an observation.

    Args:
        python: real path of the interpreter; its installation is two folders above.
        packages: folder of packages that code may import besides the standard library.
        hidden: folders that code must not read, wherever they are.
        level: isolation level; None for the strongest one available.

    Attributes:
        apps: the engine's end of the connection to the apps.
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
        """The process id of the executor's outermost process."""
        return self._process.pid

    def prepare(self, datetime: str, seed: int, apps: Mapping[str, Sequence[str]]) -> None:
        """Prepare the process to run code: set its clock, random seed and available APIs.

        Raises:
            EnvBackendError: if the process does not start.
        """
        channel = Channel(self._socket, max_bytes=1 << 16)
        try:
            channel.send({"op": "start", "datetime": datetime, "seed": seed, "apps": apps})
            channel.receive(_START_S)
        except (ChannelError, TimeoutError) as error:
            details = self._process.read_stderr().strip() or error
            self.kill()
            raise EnvBackendError(
                f"The sandboxed process that runs code did not start: {details}\n"
                "To find the cause, run `coevo doctor`."
            ) from error

    def run(self, code: str, time_limit_s: float, max_chars: int) -> tuple[str, bool]:
        """Run code and wait for it to finish.

        Returns:
            The printed output or the error, and True if the code ended in an error.

        Raises:
            ChannelError: if the process has died or sends an invalid message.
            TimeoutError: if the code runs longer than the time limit.
        """
        if is_readable(self._socket):
            raise ChannelError("the process ended or sent an unexpected message")
        channel = Channel(self._socket, max_bytes=12 * max_chars + (1 << 10))
        self._count += 1
        channel.send({"op": "run", "id": self._count, "code": code, "max_chars": max_chars})
        answer = channel.receive(time_limit_s)
        if answer.get("id") != self._count:
            raise ChannelError("the reply belongs to another request")
        output = answer.get("output")
        if not isinstance(output, str):
            raise ChannelError("the reply does not contain an 'output' string")
        output = _ADDRESS.sub("0x0", output)
        if answer.get("cut") is True or len(output) > max_chars:
            output = f"{output[:max_chars]}\n[cut: only {max_chars:,} characters are shown]"
        return output, bool(answer.get("error"))

    def kill(self) -> None:
        """Kill the process and all its children. A second call has no effect."""
        self._process.close()
        self._socket.close()
        self.apps.close()
