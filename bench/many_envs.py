"""Speed, memory and waiting time of 128 live envs (16 groups of 8) on a few cores.

Each mode runs the same episodes of at most 10 steps. In mode `alone`, the policy takes no time, so
only the envs are measured. In the other modes, the policy answers n prompts in 1 + 0.01 n seconds,
like a language model that generates 100 tokens at 10 ms each and processes a prompt's new tokens in
10 ms. It only sleeps, as if it ran on a separate card, and it waits whenever it is not answering.
Its actions are those of the reference, and random choices after the end of the reference. Resets
are included. In AppWorld all actions are random choices, because a reference there is a single
program that would end the episode in its first step.

The original engines run without this library, one env after the other. Large engines have fewer
envs, so memory is also reported per env. The bare engines of BFCL and AppWorld only execute calls
and code, without judging or limits. The original WebShop is not measured: it needs Java and
packages for Python 3.8, so it cannot be installed beside this project.

Run: python bench/many_envs.py webshop      # or bfcl, alfworld, appworld; some minutes each
     taskset -c 0,1 python bench/many_envs.py alfworld --envs 128 --modes alone,lock_step
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from watched.stock import STOCK
from watched.usage import cpu_seconds, usage

from coevo_gym.core.benchmark import benchmark_specs, get_benchmark
from coevo_gym.core.seams import Act
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import View
from coevo_gym.envs.workers.worker_pool import WorkerPool
from coevo_gym.episodes import EnvPool, EvalEpisode, Finished, Runner

STEPS, COPIES, FIRST_S, EACH_S = 10, 8, 1.0, 0.01
MODES = ("alone", "lock_step", "async", "workers")


class Policy:
    """A policy that plays references, then random choices, with delays.

    Args:
        tasks: tasks whose references are played if they are longer than one step.
        choices: returns the choices for a view.
        first_s: seconds per batch of answers.
        each_s: additional seconds per prompt in the batch.

    Attributes:
        busy_s: seconds spent answering.
        cpu_s: processor time spent answering.
        n_steps: number of answers.
        held: maximum memory of this process and its children.
    """

    def __init__(self, tasks: Sequence[Task], choices: Any, first_s: float, each_s: float) -> None:
        played = [task for task in tasks if len(task.solution) > 1]
        self._references = {task.instruction: task.solution for task in played}
        self._choices = choices
        self._first_s, self._each_s = first_s, each_s
        self._rng = np.random.default_rng(0)
        self._asked = 0
        self.busy_s, self.cpu_s, self.n_steps = 0.0, 0.0, 0
        self.held = usage()

    def act(self, views: Sequence[View]) -> list[Act]:
        """Return an act for each view."""
        started, cpu = time.perf_counter(), time.thread_time()
        acts = [Act(self._choose_action(view)) for view in views]
        self._asked += 1
        if self._first_s and self._asked % 5 == 2:
            self.held = max(self.held, usage())
        rest = self._first_s + self._each_s * len(views) - (time.perf_counter() - started)
        if self._first_s:
            time.sleep(max(0.0, rest))
        self.busy_s += time.perf_counter() - started
        self.cpu_s += time.thread_time() - cpu
        self.n_steps += len(views)
        return acts

    def _choose_action(self, view: View) -> str:
        reference, number = self._references.get(view.instruction, ()), len(view.history)
        if number < len(reference):
            return reference[number]
        options = self._choices(view)
        return options[int(self._rng.integers(len(options)))]


class Row(NamedTuple):
    """The results of one mode.

    Attributes:
        mode: name of the mode.
        steps: env steps.
        seconds: wall time.
        cpu_s: processor time of all processes.
        memory_mb: memory as in :class:`watched.usage.Usage`, minus that before the mode.
        n_envs: number of live envs.
        waiting: share of the time that the policy waited; nan in mode ``alone``.
    """

    mode: str
    steps: int
    seconds: float
    cpu_s: float
    memory_mb: float
    n_envs: int
    waiting: float


def measure_mode(name: str, mode: str, tasks: Sequence[Task], n_envs: int) -> Row:
    """Run each task in several envs, with all envs live at the same time."""
    benchmark = get_benchmark(name)
    env_id = next(spec.env_id for spec in benchmark_specs() if spec.name == name)
    workers = WorkerPool(len(os.sched_getaffinity(0))) if mode == "workers" else None
    make = partial(gym.make, env_id, disable_env_checker=True, max_steps=STEPS)
    pool = EnvPool(
        (lambda: workers.put(make())) if workers else make,  # type: ignore[arg-type]
        max_envs=n_envs,
    )
    episodes = [EvalEpisode(tasks[i // COPIES], i) for i in range(n_envs)]
    before, cpu, started = usage().memory_mb, cpu_seconds(), time.perf_counter()
    times = (0.0, 0.0) if mode == "alone" else (FIRST_S, EACH_S)
    policy = Policy(tasks, benchmark.choices, *times)
    runner = Runner(pool, "async" if mode in ("async", "workers") else "lock_step")
    ended = list(runner.run(episodes, policy))
    seconds = time.perf_counter() - started
    spent = cpu_seconds() - cpu - policy.cpu_s
    if mode == "alone":
        seconds -= policy.busy_s
    pool.close()
    if workers:
        workers.close()
    lost = sum(not isinstance(outcome, Finished) for outcome in ended)
    if lost:
        print(f"{mode}: {lost} of {len(ended)} episodes were lost", file=sys.stderr)
    waiting = float("nan") if mode == "alone" else 1 - policy.busy_s / seconds
    memory = float("nan") if mode == "alone" else policy.held.memory_mb - before
    return Row(mode, policy.n_steps, seconds, spent, memory, n_envs, waiting)


def measure_stock_engine(name: str, tasks: Sequence[Task], n_envs: int) -> Row | None:
    """Measure the original engine in the same way; return None if it is not available."""
    if name not in STOCK:
        return None
    before, cpu, started = usage().memory_mb, cpu_seconds(), time.perf_counter()
    steps, memory = STOCK[name](tasks, n_envs, STEPS)
    seconds, spent = time.perf_counter() - started, cpu_seconds() - cpu
    return Row("stock", steps, seconds, spent, memory - before, n_envs, float("nan"))


def main() -> None:
    """Print a table of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("benchmark", choices=["webshop", "bfcl", "alfworld", "appworld"])
    parser.add_argument("--envs", type=int, default=128, help="number of envs, a multiple of 8")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument(
        "--stock", type=int, default=8, help="number of envs of the original engine; 0 skips it"
    )
    options = parser.parse_args()
    n_tasks = options.envs // COPIES
    every = get_benchmark(options.benchmark).tasks(Split.TRAIN)
    tasks = every[:: max(1, len(every) // n_tasks)][:n_tasks]
    print(
        f"{options.benchmark}: {n_tasks} groups of {COPIES}, {len(os.sched_getaffinity(0))} cores, "
        f"load {os.getloadavg()[0]:.0f}; Python {platform.python_version()}, "
        f"{time.strftime('%Y-%m-%d')}"
    )
    print("| mode | envs | steps/s | steps per CPU s | total MB | MB per env | policy waits |")
    print("|---|---|---|---|---|---|---|")
    # The first measurement loads data that is read only once.
    measure_mode(options.benchmark, "alone", tasks, options.envs)
    for mode in options.modes.split(","):
        print_row(measure_mode(options.benchmark, mode, tasks, options.envs))
    if options.stock and (row := measure_stock_engine(options.benchmark, tasks, options.stock)):
        print_row(row)


def print_row(row: Row) -> None:
    """Print one row."""
    waits = "" if np.isnan(row.waiting) else f"{row.waiting:.1%}"
    memory = f"{row.memory_mb:,.0f} | {row.memory_mb / row.n_envs:,.2f}"
    memory = " | " if np.isnan(row.memory_mb) else memory
    print(
        f"| {row.mode} | {row.n_envs} | {row.steps / row.seconds:,.0f} | "
        f"{row.steps / max(row.cpu_s, 0.01):,.0f} | {memory} | {waits} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
