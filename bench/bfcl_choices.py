"""Share of the reference solutions that can be played with the choices of CoEvolve-BFCL-v0.

Run: python bench/bfcl_choices.py
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import gymnasium as gym

import coevo_gym
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import View
from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.bfcl.tasks import CLOSING

BFCL = get_benchmark("bfcl")


class Reach(NamedTuple):
    """Share of the reference solutions that the choices contain.

    Attributes:
        tasks: share of tasks for which every reference step is among the choices at its turn.
        calls: share of reference calls that are among the choices.
        seconds: mean CPU time to list the choices, without caches.
        choices: mean number of choices.
    """

    tasks: float
    calls: float
    seconds: float
    choices: float


def play_demonstration(task: Task, env: TaskEnv) -> Iterator[tuple[View | None, str]]:
    """Yield the view before each reference step (None once the episode is over) and the step."""
    env.reset(options={"task": task})
    over = False
    for step in BFCL.demonstration(task):
        yield None if over else env.view, step
        if not over:
            _, _, terminated, truncated, _ = env.step(step)
            over = terminated or truncated


def measure_reach(tasks: Sequence[Task], env: TaskEnv) -> Reach:
    """Compare the choices with references that send one call per message."""
    whole, offered, counts, spent = 0, list[bool](), list[int](), 0.0
    for task in tasks:
        hits = []
        for view, step in play_demonstration(task, env):
            started = time.process_time()
            choices = BFCL.choices(view) if view else ()
            spent += time.process_time() - started
            counts.append(len(choices))
            if step != CLOSING:
                hits.append(step in choices)
        whole += all(hits)
        offered += hits
    return Reach(
        whole / len(tasks),
        sum(offered) / len(offered),
        spent / len(counts),
        sum(counts) / len(counts),
    )


def main() -> None:
    print(f"{'choices':24} {'tasks':>7} {'calls':>7} {'number':>7} {'time':>9}")
    for split in (Split.TRAIN, Split.VAL):
        env = cast(TaskEnv, gym.make(BFCL.env_id, split=split, max_steps=1_000).unwrapped)
        for subset in BFCL.subsets:
            shares = measure_reach(coevo_gym.tasks("bfcl", split, subset), env)
            print(
                f"{split:6} {subset:17} {shares.tasks:7.1%} {shares.calls:7.1%} "
                f"{shares.choices:7.0f} {shares.seconds * 1e3:6.2f} ms"
            )


if __name__ == "__main__":
    main()
