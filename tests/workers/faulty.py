"""An env whose engine does what no engine should: one bad action each.

It lies in a module of its own, which worker processes import.
"""

from __future__ import annotations

import functools
import os
import signal
import threading

import gymnasium as gym
from numpy.random import Generator

from coevo_gym.core.errors import EnvBackendError
from coevo_gym.core.task import Verifier, World
from coevo_gym.envs.frame import Frame, Grade
from coevo_gym.envs.vector import TaskVectorEnv
from tests.toy import ToyEnv

ENV_ID = "Faulty-v0"
MANY_BYTES = 1 << 50


class FaultyEnv(ToyEnv):
    """The toy env, which draws from its generator and may break in a hook."""

    engine_attributes = ("pressed",)

    def __init__(self, *, breaks_at: str = "", **kwargs: object) -> None:
        self.breaks_at = breaks_at
        super().__init__(**kwargs)  # type: ignore[arg-type]

    def _begin(self, world: World, instruction: str, rng: Generator) -> Frame:
        if self.breaks_at == "begin":
            os._exit(7)
        frame = super()._begin(world, instruction, rng)
        return self._mark(frame, f"drawn {int(rng.integers(10**9))}")

    def _act(self, action: str) -> Frame:
        if self.breaks_at == "act":
            os._exit(8)
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "hang":
            threading.Event().wait()
        if action == "raise":
            raise RuntimeError("nobody expects this")
        if action == "engine":
            raise EnvBackendError("the engine is gone")
        if action == "memory":
            bytearray(MANY_BYTES)
        if action == "leave":
            raise SystemExit(3)
        if action == "unpicklable":
            return Frame("", extras={"f": lambda: 0})
        if action.startswith(("read ", "write ")):  # waits for who does the other
            way, pipe = action.split()
            os.close(os.open(pipe, os.O_RDONLY if way == "read" else os.O_WRONLY))
        frame = super()._act(action)
        return self._mark(frame, f"drawn {int(self.np_random.integers(10**9))}")

    def _grade(self, verifier: Verifier) -> Grade:
        if self.breaks_at == "grade":
            os._exit(9)
        return super()._grade(verifier)

    def _mark(self, frame: Frame, mark: str) -> Frame:
        return self._frame_of(calls=(mark,), done=frame.done, valid=frame.valid)


make_vec = functools.partial(TaskVectorEnv, ENV_ID)


def register() -> None:
    if ENV_ID not in gym.registry:
        gym.register(
            ENV_ID,
            entry_point=f"{__name__}:FaultyEnv",
            vector_entry_point=f"{__name__}:make_vec",
        )
