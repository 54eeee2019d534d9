"""``coevo``, killed in its second step when studies are over and nothing was learned from it."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from coevo_gym.trainers.loop import Loop
from tests.runs.child import main

learn = Loop._learn


def die_in_second_step(self: Loop, *args: object) -> object:
    if self.state.step == 1:
        kill_self()
    return learn(self, *args)  # type: ignore[arg-type]


def kill_self() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


if __name__ == "__main__":
    Loop._learn = die_in_second_step  # type: ignore[assignment, method-assign]
    main()
