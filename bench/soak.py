"""Check that memory, open files, processes and threads do not grow in long use of an env.

Each run tests one benchmark, in one process with several envs that take turns. A third of the
episodes play the reference. A third draw random choices; in BFCL, where computing the choices is
slower than the engine, most actions are drawn from all references. A third play a reference of
which half of the actions are truncated, doubled, overlong or mixed with odd characters. The
resources of this process and its children are written 200 times to OUT/BENCHMARK.jsonl, one line
each.

The first fifth of the series is dropped, because caches fill during this time. The rest is divided
into 20 parts, since neighbouring values are correlated, and a line is fitted through the means of
the parts. The growth over the whole amount of work is printed, with its 95% interval by Student's
t with 18 degrees of freedom. The exit code is 1 if a value grows by more than 2% of its level and
the interval is above 0.

Run: python bench/soak.py webshop --out soak         # or bfcl, alfworld, appworld
     python bench/soak.py webshop --out soak --read  # table of an existing series
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import gymnasium as gym
import numpy as np
from numpy.random import Generator
from watched.usage import Usage, usage

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import EnvBackendError
from coevo_gym.core.stats import student_t_quantile
from coevo_gym.core.task import Split
from coevo_gym.envs.base import TaskEnv

T = TypeVar("T")
SAMPLES, PARTS, FILLING = 200, 20, 0.2
REFERENCE, CHOOSING, TORN = range(3)
ODD = (
    "",
    "\0",
    "\x1b[2J",
    "\u202e",
    "[",
    "]",
    "(",
    "'",
    '"',
    "{",
    "\n",
    "x" * 5_000,
    "é",
    "𝔘",
    "=",
)


class Work(NamedTuple):
    """The amount of work for a benchmark.

    Attributes:
        env_id: id of the env.
        unit: unit of the amount, steps or episodes.
        amount: number of units.
        n_envs: number of envs that take turns.
        choosing: share of the random actions that are drawn from the choices; the others are drawn
            from references.
    """

    env_id: str
    unit: str
    amount: int
    n_envs: int
    choosing: float = 1.0


WORK = {
    "webshop": Work("CoEvolve-WebShop-v0", "steps", 1_000_000, 16),
    "bfcl": Work("CoEvolve-BFCL-v0", "steps", 1_000_000, 16, choosing=0.02),
    "alfworld": Work("CoEvolve-ALFWorld-v0", "steps", 20_000, 16),
    "appworld": Work("CoEvolve-AppWorld-v0", "episodes", 1_000, 2),
}


def damage_action(action: str, rng: Generator) -> str:
    """Return a damaged copy of an action."""
    at, odd = int(rng.integers(len(action) + 1)), draw(ODD, rng)
    head, tail = action[:at], action[at:]
    return draw((head, tail, head + odd + tail, head + 2 * tail, action.swapcase()), rng)


def draw(values: Sequence[T], rng: Generator) -> T:
    """Return a random value."""
    return values[int(rng.integers(len(values)))]


def play_episode(env: TaskEnv, work: Work, rng: Generator) -> Iterator[str]:
    """Play an episode; yield the end reason after each step, or "" while it continues."""
    choices_in = get_benchmark(env.benchmark).choices
    task, manner = draw(env.tasks, rng), int(rng.integers(3))
    env.reset(seed=int(rng.integers(1 << 31)), options={"task": task})
    for number in range(env.max_steps):
        if manner != CHOOSING and number < len(task.solution):
            action = task.solution[number]
        elif rng.random() < work.choosing:
            action = draw(choices_in(env.view), rng)
        else:
            action = draw(draw(env.tasks, rng).solution, rng)
        if manner == TORN and rng.random() < 0.5:
            action = damage_action(action, rng)
        _, _, terminated, truncated, info = env.step(action)
        yield str(info["end_reason"])
        if terminated or truncated:
            return


def measure_usage(name: str, amount: int, path: Path) -> None:
    """Do the work for a benchmark, and write the series."""
    work, rng = WORK[name], np.random.default_rng(0)
    makes = (gym.make(work.env_id, disable_env_checker=True) for _ in range(work.n_envs))
    envs = [cast(TaskEnv, wrapper.unwrapped) for wrapper in makes]
    live = [play_episode(env, work, rng) for env in envs]
    counts = {"steps": 0, "episodes": 0, "solved": 0, "lost": 0}
    every, due, started = amount / SAMPLES, 0.0, time.monotonic()
    with path.open("w") as out:
        while True:
            for place, env in enumerate(envs):
                try:
                    end = next(live[place])
                    counts["steps"] += 1
                    counts["episodes"] += bool(end)
                    counts["solved"] += end == "solved"
                except StopIteration:
                    live[place] = play_episode(env, work, rng)
                except EnvBackendError as error:
                    print(f"lost: {error}", file=sys.stderr)
                    counts["lost"] += 1
                    live[place] = play_episode(env, work, rng)
            if (done := counts[work.unit]) < due:
                continue
            seconds = time.monotonic() - started
            line = {**counts, "seconds": round(seconds, 1), **usage()._asdict()}
            out.write(json.dumps(line) + "\n")
            out.flush()
            print(f"{name}: {done:,} of {amount:,} {work.unit}, {seconds:,.0f} s", flush=True)
            if done >= amount:
                break
            due = min(due + every, amount)
    for each in envs:
        each.close()


def growth(at: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Return a series' growth over the whole work, and half the width of its 95% interval.

    Args:
        at: work done before each measurement, increasing, shape (n,) with n >= 20.
        values: measured values, shape (n,).
    """
    x, y = (
        np.array([part.mean() for part in np.array_split(np.asarray(series, float), PARTS)])
        for series in (at, values)
    )
    away = x - x.mean()
    slope = float(away @ y / (away @ away))
    rest = y - y.mean() - slope * away
    error = math.sqrt(float(rest @ rest) / (PARTS - 2) / float(away @ away))
    return slope * at[-1], student_t_quantile(0.975, PARTS - 2) * error * at[-1]


def print_table(name: str, series: Sequence[dict[str, Any]]) -> bool:
    """Print the results; return True if nothing grows."""
    work, last = WORK[name], series[-1]
    print(
        f"{name}: {last['steps']:,} steps, {last['episodes']:,} episodes ({last['solved']:,} "
        f"solved, {last['lost']} lost), {last['seconds']:,.0f} s\n"
        f"Python {platform.python_version()}, {platform.machine()}, {time.strftime('%Y-%m-%d')}"
    )
    lines = [line for line in series if line[work.unit] >= FILLING * last[work.unit]]
    if len(lines) < PARTS:
        print(f"{len(lines)} values after the caches have filled are too few; need {PARTS}.")
        return False
    flat = True
    print(f"{'':12}{'first':>9}{'lowest':>9}{'highest':>9}{'last':>9}   growth over the whole work")
    for field in Usage._fields:
        values = [line[field] for line in lines]
        more, half = growth([line[work.unit] for line in lines], values)
        holds = more - half <= 0 or more < 0.02 * values[0]
        flat &= holds
        numbers = "".join(f"{v:9,.0f}" for v in (values[0], min(values), max(values), values[-1]))
        print(
            f"{field:12}{numbers}   {more:+.2f} [{more - half:+.2f}, {more + half:+.2f}]"
            f"{'' if holds else '  GROWS'}"
        )
    return flat


def main() -> int:
    """Measure or read a series; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("benchmark", choices=list(WORK))
    parser.add_argument("--out", type=Path, default=Path("soak"), help="folder for the series")
    parser.add_argument(
        "--amount", type=int, help="number of steps or episodes (default: see WORK)"
    )
    parser.add_argument(
        "--read", action="store_true", help="only print the table of an existing series"
    )
    options = parser.parse_args()
    path = options.out / f"{options.benchmark}.jsonl"
    if not options.read:
        options.out.mkdir(parents=True, exist_ok=True)
        _ = get_benchmark(options.benchmark).tasks(Split.TRAIN)
        measure_usage(options.benchmark, options.amount or WORK[options.benchmark].amount, path)
    series = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
    return 0 if print_table(options.benchmark, series) else 1


if __name__ == "__main__":
    sys.exit(main())
