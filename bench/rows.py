"""Time and memory of many rows: making the benchmark, drawing, a reset and a verdict.

    load     read a JSONL file of rows and make the benchmark
    reset    reset the env to a random row
    step     play an episode of one answer
    sampler  make a sampler, whose pool has all training rows
    draw     play an episode of the sampler, which draws the row

Times are processor times; those of single calls are the mean over 2,000 calls. The last line is the
process's peak memory.

Run: python bench/rows.py                # 100,000 rows, about a minute
     python bench/rows.py --rows 2000    # a shorter check
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym

from coevo_gym import EvolvingTaskSampler, from_rows

CALLS = 2_000


def is_correct(row: dict[str, Any], answer: str) -> bool:
    return answer == str(row["answer"])


def propose_nothing(row: dict[str, Any], findings: object) -> list[dict[str, Any]]:
    return []


def mean_ms(call: Callable[[], object]) -> float:
    """Return the mean time of a call in milliseconds."""
    begun = time.process_time()
    for _ in range(CALLS):
        call()
    return 1000 * (time.process_time() - begun) / CALLS


def play(env: gym.Env[str, str]) -> None:
    """Play an episode."""
    env.reset()
    env.step("1")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    n = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.jsonl")
        with file.open("w") as lines:
            for i in range(n):
                row = {"id": f"r{i}", "prompt": f"What is {i} + {i % 97}? " * 4, "answer": i}
                lines.write(json.dumps(row) + "\n")
        begun = time.process_time()
        rows = from_rows(file, is_correct, propose=propose_nothing, name="many")
        print(f"load     {time.process_time() - begun:8.2f} s for {n:,} rows")
    env = rows.make()
    env.reset(seed=0)
    print(f"reset    {mean_ms(env.reset):8.3f} ms")
    begun = time.process_time()
    sampler = EvolvingTaskSampler(rows.make(), "coevolve", group_size=8)
    print(f"sampler  {time.process_time() - begun:8.2f} s")
    for name, played in (("step", env), ("draw", sampler)):
        print(f"{name}     {mean_ms(partial(play, played)):8.3f} ms")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"memory   {peak / 1024:8.0f} MiB at most")


if __name__ == "__main__":
    main()
