"""Speed and memory of CoEvolve-BFCL-v0 and of the official executor, in the same run.

Run: python bench/bfcl.py
"""

from __future__ import annotations

import gc
import json
import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import gymnasium as gym

from coevo_gym.core.task import Split, Task
from coevo_gym.envs.bfcl.engine.official_calls import Call, parse_truth
from coevo_gym.envs.bfcl.engine.toolbox import Toolbox
from coevo_gym.envs.bfcl.engine.wheel import CATEGORIES, import_official
from coevo_gym.envs.bfcl.tasks import native_tasks
from coevo_gym.envs.bfcl.world import BFCLVerifier, BFCLWorld

SECONDS = 5.0
EPISODES = 50_000
PAGE = 4096


def world_and_verifier(task: Task) -> tuple[BFCLWorld, BFCLVerifier]:
    return cast(BFCLWorld, task.world), cast(BFCLVerifier, task.verifier)


def own_call_times(tasks: Sequence[Task]) -> list[float]:
    """Return the seconds that each reference call takes in the env's dispatcher."""
    times = []
    for task in tasks:
        world, verifier = world_and_verifier(task)
        toolbox = Toolbox(world)
        for call in (parse_truth(text) for turn in verifier.turns for text in turn):
            times.append(call_seconds(toolbox.call, call))
    return times


def call_seconds(run: Callable[[Call], str], call: Call) -> float:
    started = time.perf_counter()
    run(call)
    return time.perf_counter() - started


def stock_call_times(tasks: Sequence[Task]) -> list[float]:
    """Return the seconds that each reference call takes in the official executor."""
    utils = import_official("eval_checker.multi_turn_eval.multi_turn_utils")
    execute, before, times = utils.execute_multi_turn_func_call, set(vars(utils)), []
    for task in tasks:
        world, verifier = world_and_verifier(task)
        begun = (
            json.loads(world.config),
            list(world.classes),
            "stock",
            task.name.rpartition("/")[2],
        )
        execute([], *begun, world.long_context)  # create the instances
        for text in (text for turn in verifier.turns for text in turn):
            started = time.perf_counter()
            execute([text], *begun, world.long_context)
            times.append(time.perf_counter() - started)
        for name in set(vars(utils)) - before:
            delattr(utils, name)
    return times


def play_references(env: gym.Env[str, str], tasks: Sequence[Task]) -> Iterator[None]:
    """Play reference episodes in an endless loop, and yield after each one."""
    while True:
        for task in tasks:
            env.reset(options={"task": task})
            for message in task.solution:
                env.step(message)
            yield


def episodes_per_second(tasks: Sequence[Task]) -> float:
    count, started = 0, time.perf_counter()
    for _ in play_references(gym.make("CoEvolve-BFCL-v0", split="test", scheme="all200"), tasks):
        count += 1
        if time.perf_counter() - started > SECONDS:
            break
    return count / (time.perf_counter() - started)


def measure_bytes_per_episode(tasks: Sequence[Task], n: int) -> float:
    """Return the bytes of Python objects that a finished episode leaves in memory."""
    running = play_references(gym.make("CoEvolve-BFCL-v0", split="test", scheme="all200"), tasks)
    for _ in range(n):
        next(running)
    gc.collect()
    tracemalloc.start()
    for _ in range(n):
        next(running)
    gc.collect()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return grown / n


def measure_resident_megabytes(tasks: Sequence[Task]) -> tuple[float, float]:
    """Return the resident memory in MB after a tenth of the episodes and after all of them."""
    running = play_references(gym.make("CoEvolve-BFCL-v0", split="test", scheme="all200"), tasks)
    seen = []
    for n in (EPISODES // 10, EPISODES - EPISODES // 10):
        for _ in range(n):
            next(running)
        seen.append(int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6)
    return seen[0], seen[1]


def main() -> None:
    started = time.perf_counter()
    tasks = {name: native_tasks(Split.TEST, name, "all200") for name in CATEGORIES}
    loaded = time.perf_counter() - started
    every = [task for of_category in tasks.values() for task in of_category]
    base, long = tasks["base"], tasks["long_context"]
    own_call_times(base), stock_call_times(base)  # fill caches
    own, stock = own_call_times(base), stock_call_times(base)
    ratio = statistics.median(theirs / ours for ours, theirs in zip(own, stock, strict=True))
    early, late = measure_resident_megabytes(every)
    rows = [
        (
            "call in the env's dispatcher, median",
            f"{statistics.median(own) * 1e6:.1f} µs",
            "<= 10 µs",
        ),
        ("call in the official executor, median", f"{statistics.median(stock) * 1e6:.1f} µs", ""),
        ("ratio for the same call, median", f"{ratio:.1f} x", ">= 10 x"),
        ("ratio of the total times", f"{sum(stock) / sum(own):.1f} x", ""),
        ("base episodes per second", f"{episodes_per_second(base):,.0f}", ">= 500"),
        ("long_context episodes per second", f"{episodes_per_second(long):,.0f}", ">= 200"),
        (
            "memory kept per finished episode",
            f"{measure_bytes_per_episode(every, 1600):.0f} B",
            "< 512 B",
        ),
        (f"resident memory, {EPISODES // 10:,} episodes", f"{early:.1f} MB", ""),
        (f"resident memory, {EPISODES:,} episodes", f"{late:.1f} MB", "flat"),
        ("loading 800 tasks", f"{loaded:.2f} s", ""),
    ]
    print(f"Python {platform.python_version()}, {platform.machine()}, {time.strftime('%Y-%m-%d')}")
    for name, value, wanted in rows:
        print(f"{name:42} {value:>12}  {wanted}")


if __name__ == "__main__":
    main()
