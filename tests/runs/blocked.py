"""Like ``child``, but every step ends in waiting for input that never comes."""

from __future__ import annotations

import sys

from coevo_gym.cli import main
from coevo_gym.runs.arm import ArmEvents
from tests import toy


def wait_forever(self: ArmEvents, *recorded: object) -> None:
    self.progress.say("waiting")
    sys.stdin.read()


if __name__ == "__main__":
    toy.register()
    ArmEvents.on_groups = wait_forever  # type: ignore[method-assign]
    main()
