"""Speed, cost and memory of envs in worker processes, compared with envs in one process.

Both modes take turns in one run, with the same tasks and actions, so that other load on the machine
affects both. Processor time per step does not depend on other load, and shows the cost of workers.

Run: python bench/workers.py [--env CoEvolve-ALFWorld-v0] [--envs 8] [--workers 2] [--rounds 6]
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import gymnasium as gym

import coevo_gym
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.task import Task
from coevo_gym.envs.vector import TaskVectorEnv

TICKS = os.sysconf("SC_CLK_TCK")


class Round(NamedTuple):
    """The cost of a round of steps.

    Attributes:
        rate: env steps per second.
        cpu_ms: processor time of all processes per env step, in ms.
        busiest_ms: processor time of the busiest process per env step, in ms.
    """

    rate: float
    cpu_ms: float
    busiest_ms: float


def process_ids(envs: TaskVectorEnv) -> list[int]:
    """Return the process ids of this process and of the workers."""
    pids = envs.workers.pids if envs.workers is not None else ()
    return [os.getpid(), *(pid for pid in pids if pid is not None)]


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mb(pid: int) -> tuple[float, float]:
    """Return a process's private memory and its proportional set size, in MB."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kb = {line.split(":")[0]: int(line.split()[1]) for line in rollup[1:]}
    return (kb["Private_Clean"] + kb["Private_Dirty"]) / 1e3, kb["Pss"] / 1e3


def play(envs: TaskVectorEnv, tasks: Sequence[Task], n_steps: int, seed: int) -> Round:
    """Step all envs together with random choices, and return the cost."""
    choices, rng = get_benchmark(tasks[0].benchmark).choices, random.Random(seed)
    envs.reset(options={"tasks": list(tasks)})
    before = {pid: cpu_s(pid) for pid in process_ids(envs)}
    began = time.perf_counter()
    for _ in range(n_steps):
        envs.step([rng.choice(choices(view) or ("print(1)",)) for view in envs.views])
        if envs.over.any():
            envs.reset(options={"reset_mask": envs.over, "tasks": list(tasks)})
    took = time.perf_counter() - began
    n = n_steps * envs.num_envs
    spent = [cpu_s(pid) - before[pid] for pid in process_ids(envs)]
    return Round(n / took, sum(spent) / n * 1e3, max(spent) / n * 1e3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="CoEvolve-ALFWorld-v0")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=30)
    wanted = parser.parse_args()
    bare = gym.make(wanted.env).unwrapped
    tasks = coevo_gym.tasks(cast(str, bare.benchmark))  # type: ignore[attr-defined]
    chosen = list(tasks[:: max(1, len(tasks) // wanted.envs)][: wanted.envs])
    here = TaskVectorEnv(wanted.env, wanted.envs, mode="in_process")
    there = TaskVectorEnv(wanted.env, wanted.envs, n_workers=wanted.workers)
    play(here, chosen, 1, 0)  # fill all caches, including those on disk
    began = time.perf_counter()
    there.reset(options={"tasks": chosen})
    first = time.perf_counter() - began
    rounds = [
        [play(e, chosen, wanted.steps, s) for e in (here, there)] for s in range(wanted.rounds)
    ]
    assert there.workers is not None
    killed = there.workers.workers[0]
    killed.close()
    began = time.perf_counter()
    there.step(["look"] * wanted.envs)
    again = time.perf_counter() - began
    load = os.getloadavg()[0]
    print(
        f"{wanted.env}, {wanted.envs} envs, {wanted.workers} workers; Python "
        f"{platform.python_version()}, {os.cpu_count()} cores, load {load:.0f}, "
        f"{time.strftime('%Y-%m-%d')}"
    )
    for name, column in (("one process", 0), ("workers", 1)):
        of = [pair[column] for pair in rounds]
        print(
            f"{name:12} {statistics.median(r.rate for r in of):7.0f} env steps/s, processor "
            f"{statistics.median(r.cpu_ms for r in of):.2f} ms per step in total, "
            f"{statistics.median(r.busiest_ms for r in of):.2f} ms in the busiest process"
        )
    ratios = sorted(pair[1].rate / pair[0].rate for pair in rounds)
    print(
        f"ratio        {statistics.median(ratios):.2f} (from {ratios[0]:.2f} to {ratios[-1]:.2f})"
    )
    print(f"first reset, including the start of workers: {first:.1f} s")
    print(f"step that replaces a lost worker and replays its episodes: {again:.2f} s")
    for pid in process_ids(there)[1:]:
        own, shared = memory_mb(pid)
        print(f"worker: {own:.0f} MB private, {shared:.0f} MB with its share of shared pages")
    here.close()
    there.close()


if __name__ == "__main__":
    main()
