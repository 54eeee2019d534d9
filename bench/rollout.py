"""Share of time that rollouts keep the policy busy, in lockstep and as a stream.

Runner and stream are the real ones; engines and policy only sleep. The time of an engine's step is
drawn from measured times, and the interpreter is free during this time, as with an engine in a
worker process. The policy takes the time that a language model would need on one H200 for the
longest answer of a batch. The exit code is 1 if a bound is missed.

Run: python bench/rollout.py               # 7 minutes
     python bench/rollout.py --stretch 4 --seconds 40    # for a busy machine: all times are 4 times
                                           # as long, so that the benchmark's own work counts less
     python bench/rollout.py --measure     # measure the engines' times for ENGINES
     python bench/rollout.py --patience    # compare waiting times of an idle agent for more views
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
from numpy.random import Generator

import coevo_gym
from coevo_gym.agents.lm.model_shape import ModelShape
from coevo_gym.agents.scripted import RandomAgent
from coevo_gym.core.errors import CoevoError
from coevo_gym.core.seams import Act
from coevo_gym.core.trajectory import View
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes import EnvPool, EpisodeStream, Runner, TrainingEpisode, stream

BUSY, IDLE = 0.9, 0.6
"""Shares of time: where lockstep keeps the policy busy for at most the second share, a stream must
reach the first."""
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
MIN_STEPS = 3
READ_RATE, FLOPS = 0.5 * 4.3e12, 0.4 * 788e12
"""Bytes read and bf16 operations per second that a policy on an H200 is assumed to reach: 45% and
32% of the card's peak rates. These shares were not measured."""


class Engine(NamedTuple):
    """Times and episode lengths of an engine.

    Attributes:
        reset_ms: quantiles of the time of a reset, at :data:`QUANTILES`.
        step_ms: quantiles of the time of a step, at :data:`QUANTILES`.
        most_steps: maximum steps per episode; the number is drawn log-uniformly up to it.
    """

    reset_ms: tuple[float, ...]
    step_ms: tuple[float, ...]
    most_steps: int


ENGINES = {
    "webshop": Engine(
        reset_ms=(0.07, 0.14, 0.15, 0.18, 0.24, 0.29, 0.39, 0.42),
        step_ms=(0.03, 0.05, 0.06, 0.08, 0.14, 0.24, 0.46, 0.73),
        most_steps=15,
    ),
    "bfcl": Engine(
        reset_ms=(0.17, 0.34, 0.43, 0.58, 0.7, 0.83, 0.94, 1.39),
        step_ms=(0.03, 0.07, 0.13, 0.21, 0.26, 0.31, 0.5, 1.62),
        most_steps=30,
    ),
    "alfworld": Engine(
        reset_ms=(1.06, 10.68, 12.1, 18.46, 38.61, 57.53, 240.35, 246.33),
        step_ms=(0.13, 0.26, 0.34, 0.55, 1.0, 2.33, 3.72, 199.33),
        most_steps=50,
    ),
    "appworld": Engine(
        reset_ms=(210.86, 222.2, 223.65, 228.6, 232.32, 254.07, 413.84, 415.31),
        step_ms=(8.0, 10.65, 12.47, 18.98, 25.9, 76.72, 140.29, 144.66),
        most_steps=30,
    ),
}
"""Results of ``--measure`` on 2026-11-22, on 2 cores of an AMD EPYC. They are processor times of
100 episodes (AppWorld: 20), half references and half random actions, on a shared machine."""


class Model(NamedTuple):
    """Answering times of a language model on an H200, at :data:`READ_RATE` and :data:`FLOPS`.

    Attributes:
        shape: shape of the model.
        context: tokens of an average prompt; all except the newest are in the cache.
        news: tokens that a step adds to the prompt.
        answer: median tokens per answer; lengths are log-normal with sigma 0.5.
    """

    shape: ModelShape
    context: int = 2000
    news: int = 250
    answer: int = 60

    def draw_seconds(self, size: int, rng: Generator) -> float:
        """Return the seconds that the model needs to answer a batch."""
        longest = self.answer * float(np.exp(0.5 * rng.standard_normal(size)).max())
        cache = 2.0 * self.shape.kv_values_per_token * self.context * size
        decode = longest * (2.0 * self.shape.n_parameters + cache) / READ_RATE
        prefill = 2.0 * self.shape.n_active_parameters * self.news * size / FLOPS
        return decode + prefill


MODELS = {
    "1.5B": Model(ModelShape(28, 1536, 12, 2, 128, 8960, 151936, True)),
    "7B": Model(ModelShape(28, 3584, 28, 4, 128, 18944, 152064, False)),
}


def draw_from_quantiles(quantiles: Sequence[float], rng: Generator) -> float:
    """Return a draw from a distribution given by its values at :data:`QUANTILES`."""
    return float(np.interp(rng.random(), QUANTILES, quantiles))


class Stand(gym.Wrapper[str, str, str, str]):
    """An env with another engine's times and episode lengths."""

    def __init__(self, env: gym.Env[str, str], engine: Engine, stretch: float, seed: int) -> None:
        super().__init__(env)
        self._engine, self._rng = engine, np.random.default_rng(seed)
        self._s_per_ms = stretch / 1000
        self._left = 0

    def reset(self, **keywords: Any) -> tuple[str, dict[str, Any]]:
        """Begin an episode."""
        output = self.env.reset(**keywords)
        time.sleep(draw_from_quantiles(self._engine.reset_ms, self._rng) * self._s_per_ms)
        low, high = np.log(MIN_STEPS), np.log(self._engine.most_steps)
        self._left = round(float(np.exp(self._rng.uniform(low, high))))
        return output

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        text, reward, terminated, truncated, info = self.env.step(action)
        time.sleep(draw_from_quantiles(self._engine.step_ms, self._rng) * self._s_per_ms)
        self._left -= 1
        return text, reward, terminated, truncated or self._left <= 0, info


class Scale(NamedTuple):
    """Settings for the measurement of a cell.

    Attributes:
        live: number of concurrent episodes.
        wall_s: wall time per cell.
        stretch: factor on all times.
    """

    live: int
    wall_s: float
    stretch: float


class Over(Exception):
    """An exception raised when the time of a cell is up."""


class Stopwatch:
    """An agent that sleeps for a model's answering times, and adds them up.

    Args:
        model: model that determines the times.
        scale: settings for the measurement.
    """

    def __init__(self, model: Model, scale: Scale) -> None:
        self._model, self._scale, self._rng = model, scale, np.random.default_rng(1)
        self.busy_s, self.asked, self.batches = 0.0, 0, 0
        self.began: float | None = None

    def act(self, views: Sequence[View]) -> list[Act]:
        """Sleep for the time of answers to these views, and return acts."""
        started = time.monotonic()
        if self.began is None:
            self.began = started
        if started - self.began > self._scale.wall_s:
            raise Over
        time.sleep(self._model.draw_seconds(len(views), self._rng) * self._scale.stretch)
        self.busy_s += time.monotonic() - started
        self.asked += len(views)
        self.batches += 1
        return [Act("search[tea]")] * len(views)


class Cell(NamedTuple):
    """Results of one way to run rollouts.

    Attributes:
        busy: share of the wall time that the policy was busy.
        steps_per_s: env steps per second, corrected for ``stretch``.
        batch: mean number of views per batch.
    """

    busy: float
    steps_per_s: float
    batch: float


class Beside(EnvPool):
    """A pool of envs that take their steps in parallel, as in worker processes."""

    def each(
        self, envs: Sequence[gym.Env[str, str]], jobs: Sequence[Callable[[], Any]]
    ) -> Iterator[tuple[int, Any]]:
        """Run all jobs in parallel, and yield their results."""
        with ThreadPoolExecutor(len(jobs)) as threads:
            yield from enumerate(list(threads.map(lambda job: job(), jobs)))


WAYS = ("lock step", "own pace, staleness 0", "own pace, a stream", "lock step, engines at once")


def measure_cell(way: str, engine: Engine, model: Model, scale: Scale) -> Cell:
    """Run rollouts for ``scale.wall_s`` seconds, and return the results.

    All ways except the stream wait for the last episode of each step.
    """
    seeds = count()

    def make() -> gym.Env[str, str]:
        bare = gym.make("CoEvolve-WebShop-v0", max_steps=1000, disable_env_checker=True)
        bare.unwrapped.begins_alone = False  # type: ignore[attr-defined]  # as in a worker
        return Stand(bare, engine, scale.stretch, next(seeds))

    pool = Beside if way == WAYS[3] else EnvPool
    agent, envs = Stopwatch(model, scale), pool(make, max_envs=scale.live)
    with closing(envs):
        try:
            for _ in run_forever(way, envs, agent):
                pass
        except Over:
            pass
    assert agent.began is not None
    wall = time.monotonic() - agent.began
    speed = scale.stretch * agent.asked / wall
    return Cell(agent.busy_s / wall, speed, agent.asked / agent.batches)


def run_forever(way: str, envs: EnvPool, agent: Stopwatch) -> Iterator[object]:
    """Run episodes endlessly, as many at a time as there are envs."""
    task = coevo_gym.tasks("webshop", "train")[0]
    one_step = [TrainingEpisode(task, seed) for seed in range(envs.max_envs)]
    if way != WAYS[2]:
        runner = Runner(envs, "async" if way == WAYS[1] else "lock_step")
        while True:
            yield from runner.run(one_step, agent)
    with EpisodeStream[Any](envs, agent) as running:
        while True:
            while running.has_room:
                running.begin(0, one_step[0])
            yield running.next()


# Times of the engines.


def measure_engine(name: str, n_tasks: int) -> Engine:
    """Measure an engine in sequential episodes, half references and half random actions."""
    benchmark = coevo_gym.get_benchmark(name)
    env = cast(TaskEnv, gym.make(benchmark.env_id, disable_env_checker=True).unwrapped)
    tasks, rng = coevo_gym.tasks(name, "train"), np.random.default_rng(0)
    wanderer = RandomAgent(benchmark.choices, rng)
    resets, steps = [], []
    order = rng.permutation(len(tasks))
    env.reset(options={"task": tasks[int(order[0])]})  # load data that is read only once
    for number, place in enumerate(order[:n_tasks]):
        task = tasks[int(place)]
        resets.append(cpu_ms(lambda task=task: env.reset(options={"task": task})))
        reference, ended = list(task.solution)[::-1], False
        while not ended:
            if number % 2 == 0 and not reference:
                break
            action = reference.pop() if number % 2 == 0 else wanderer.act([env.view])[0].text
            results: list[Any] = []
            steps.append(cpu_ms(lambda action=action, to=results: to.append(env.step(action))))
            ended = results[0][2] or results[0][3]
    env.close()
    times = (tuple(float(v) for v in np.quantile(of, QUANTILES).round(2)) for of in (resets, steps))
    return Engine(*times, most_steps=env.max_steps)


def cpu_ms(run: Callable[[], object]) -> float:
    """Return the processor time of a call in this process and its children, in ms."""
    before, started = child_cpu_ns(), time.process_time_ns()
    run()
    own = time.process_time_ns() - started
    later = child_cpu_ns()
    spent = sum(max(0, ns - before.get(pid, 0)) for pid, ns in later.items())
    return (own + spent) / 1e6


def child_cpu_ns() -> dict[int, int]:
    """Return the processor time of each child process so far, in ns."""
    times: dict[int, int] = {}
    parents = [os.getpid()]
    while parents:
        for thread in Path(f"/proc/{parents.pop()}/task").glob("*"):
            for child in map(int, (thread / "children").read_text().split()):
                parents.append(child)
                threads = Path(f"/proc/{child}/task").glob("*/schedstat")
                times[child] = sum(int(file.read_text().split()[0]) for file in threads)
    return times


def print_table(scale: Scale) -> bool:
    """Print the table; return True if the bound holds."""
    print("| engine | model | rollouts | policy busy | env steps/s | views per batch |")
    print("|---|---|---|---|---|---|")
    missed, idle = [], 0
    for name, engine in ENGINES.items():
        for model_name, model in MODELS.items():
            cells = [measure_cell(way, engine, model, scale) for way in WAYS]
            for way, (busy, steps, batch) in zip(WAYS, cells, strict=True):
                print(f"| {name} | {model_name} | {way} | {busy:.0%} | {steps:.0f} | {batch:.0f} |")
                sys.stdout.flush()
            if cells[0].busy <= IDLE:
                idle += 1
                missed += [(name, model_name)] if cells[2].busy < BUSY else []
    print(f"\nCases where lock step leaves the policy idle: {idle}. Missed: {missed or 'none'}.")
    return bool(idle) and not missed


def print_patience_table(scale: Scale) -> None:
    """Print the stream's busy share and speed for several waiting times of an idle agent."""
    values = (0.0, 0.02, stream.PATIENCE, 0.1, 0.3)
    print("| engine | model | " + " | ".join(f"{value:.0%}" for value in values) + " |")
    print("|" + "---|" * (2 + len(values)))
    for name, engine in ENGINES.items():
        for model_name, model in MODELS.items():
            row = []
            for stream.PATIENCE in values:
                result = measure_cell(WAYS[2], engine, model, scale)
                row.append(f"{result.busy:.0%}, {result.steps_per_s:.0f}/s")
            print(f"| {name} | {model_name} | " + " | ".join(row) + " |")
            sys.stdout.flush()


def main() -> int:
    """Run the requested measurement; return 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--patience", action="store_true")
    parser.add_argument("--live", type=int, default=64, help="number of concurrent episodes")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds per cell")
    parser.add_argument("--stretch", type=float, default=1.0, help="factor on all times")
    options = parser.parse_args()
    scale = Scale(options.live, options.seconds, options.stretch)
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {platform.machine()}\n")
    if options.measure:
        for name in ("webshop", "bfcl", "alfworld", "appworld"):
            try:
                print(f'    "{name}": {measure_engine(name, 20 if name == "appworld" else 100)},')
            except CoevoError as error:
                print(f"{name} is skipped: {error}")
        return 0
    if options.patience:
        print_patience_table(scale)
        return 0
    return 0 if print_table(scale) else 1


if __name__ == "__main__":
    sys.exit(main())
