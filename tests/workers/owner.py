"""A program that has envs in workers: it says so, and then does what its argument tells it."""

from __future__ import annotations

import sys

from coevo_gym.envs.vector import TaskVectorEnv
from tests import toy
from tests.workers import faulty


def main(env_id: str, then: str) -> None:
    toy.register()
    faulty.register()
    envs = TaskVectorEnv(env_id, 2, n_workers=2)
    envs.reset(seed=0)
    envs.step(["press red"] * 2)
    print("ready", flush=True)
    if then == "step":
        envs.step(["hang"] * 2)
    if then == "exception":
        sys.stdin.readline()
        raise RuntimeError("the program fails")
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
