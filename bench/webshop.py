"""Speed and memory of CoEvolve-WebShop-v0 with the built-in catalogue.

Run: python bench/webshop.py
"""

from __future__ import annotations

import gc
import platform
import time
import tracemalloc
from collections.abc import Callable

import gymnasium as gym

import coevo_gym
from coevo_gym.core.task import Task
from coevo_gym.envs.webshop.builtin import builtin_items
from coevo_gym.envs.webshop.engine.catalogue import Catalogue
from coevo_gym.envs.webshop.engine.shop_session import Session
from coevo_gym.envs.webshop.tasks import builtin_catalogue

COUNT = 10_000


def measure_megabytes(make: Callable[[int], object]) -> float:
    """Return the megabytes of Python objects that :data:`COUNT` created objects keep alive."""
    gc.collect()
    tracemalloc.start()
    objects = [make(i) for i in range(COUNT)]
    gc.collect()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(objects) == COUNT
    return grown / 1e6


def steps_per_second(tasks: list[Task]) -> float:
    """Return the steps per second of reference episodes in one env from ``gym.make``."""
    env = gym.make("CoEvolve-WebShop-v0", disable_env_checker=True)
    steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < 3.0:
        for task in tasks:
            env.reset(options={"task": task})
            for action in task.solution:
                env.step(action)
            steps += len(task.solution)
    return steps / (time.perf_counter() - started)


def main() -> None:
    items = builtin_items()
    started = time.perf_counter()
    catalogue = Catalogue.from_items("builtin", *items)
    loaded = time.perf_counter()
    len(catalogue.index)
    indexed = time.perf_counter()

    tasks = list(coevo_gym.tasks("webshop", "train", "builtin"))
    shop = builtin_catalogue()

    def session(_: int) -> Session:
        shopper = Session(shop)
        shopper.reset(tasks[0].instruction)
        return shopper

    def env(index: int) -> gym.Env[str, str]:
        environment = gym.make("CoEvolve-WebShop-v0")
        environment.reset(options={"task": tasks[index % len(tasks)]})
        return environment

    env(0)  # fill the caches that all envs share
    rows = [
        ("steps per second, reference episodes", f"{steps_per_second(tasks):,.0f}", ">= 5,000"),
        (f"{COUNT:,} engine sessions", f"{measure_megabytes(session):.1f} MB", "< 10 MB"),
        (f"memory of {COUNT:,} envs after a reset", f"{measure_megabytes(env):.1f} MB", "< 60 MB"),
        (f"catalogue of {len(catalogue):,} products", f"{loaded - started:.2f} s", ""),
        ("search index of the catalogue", f"{indexed - loaded:.2f} s", "< 1.5 s"),
    ]
    print(f"Python {platform.python_version()}, {platform.machine()}, {time.strftime('%Y-%m-%d')}")
    for name, value, wanted in rows:
        print(f"{name:42} {value:>12}  {wanted}")


if __name__ == "__main__":
    main()
