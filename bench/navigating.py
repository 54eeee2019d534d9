"""Success of unguided rollouts, with AgentEvolver's navigating on and off.

Trains the tiny policy on WebShop with the method `agentevolver`, twice per seed: with experiences
in the prompts of half of each group, and without experiences. Labels are off in both, so the arms
differ only in navigating. The benchmark compares success over the last steps: with navigating, that
of the rollouts without experiences (`memory.experiences.success_free`, or all rollouts in a step
without guided ones); without navigating, that of all rollouts. For each seed it prints both rates,
the number of learner steps with guided rollouts, and the processor time. At the end it prints the
mean difference with its 95% interval, paired by seed.

The tiny policy cannot read cues. So the benchmark only checks that the bookkeeping of navigating
does no harm, and there should be no difference. It cannot show if experiences help; this takes a
language model.

Run: python bench/navigating.py [--steps 100] [--seeds 3] [--last 20]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import coevo_gym
from coevo_gym.core.stats import paired_difference
from coevo_gym.store.folder import read_lines

ARM = "agentevolver"
FREE = "memory.experiences.success_free"


Steps = Sequence[Mapping[str, Any]]
"""Metrics of the learner steps of a run."""


def mean_unguided_success(steps: Steps) -> float:
    """Return the mean success of unguided rollouts."""
    return fmean(step.get(FREE, step["success"]) for step in steps)


def train_arm(folder: Path, seed: int, steps: int, *, navigating: bool) -> Steps:
    """Train one arm, and return its metrics."""
    method = f"arm.{ARM}.set.method"
    sets = {
        "arms": [ARM],
        "seed": seed,
        f"{method}.navigating": navigating,
        f"{method}.attributing": False,
        f"{method}.native": False,
        "loop.max_steps": steps,
        "loop.max_env_steps": None,
        "loop.groups_per_step": 4,
        "loop.evaluate_every_steps": 0,
        "evaluation.n_tasks": 1,
    }
    coevo_gym.train("quickstart", sets=sets, folder=folder)
    return [line for line in read_lines(folder / "metrics.jsonl") if line["event"] == "step"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all seeds, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100, help="learner steps per run")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, counted from 1")
    parser.add_argument(
        "--last", type=int, default=20, help="number of last steps over which success is averaged"
    )
    options = parser.parse_args(arguments)
    print("| seed | unguided, navigating on | navigating off | difference | guided steps | CPU s |")
    print("|---|---|---|---|---|---|")
    free, every = list[float](), list[float]()
    for seed in range(1, options.seeds + 1):
        started = time.process_time()
        with tempfile.TemporaryDirectory() as name:
            on = train_arm(Path(name) / "on", seed, options.steps, navigating=True)
            off = train_arm(Path(name) / "off", seed, options.steps, navigating=False)
            free.append(mean_unguided_success(on[-options.last :]))
            every.append(mean_unguided_success(off[-options.last :]))
        both = f"{free[-1]:.1%} | {every[-1]:.1%} | {free[-1] - every[-1]:+.1%}"
        both += f" | {sum(FREE in step for step in on)} of {len(on)}"
        print(f"| {seed} | {both} | {time.process_time() - started:.0f} |", flush=True)
    gap = paired_difference(free, every)
    print(f"difference {gap.mean:+.1%}, 95 % interval {gap.low:+.1%} to {gap.high:+.1%}")


if __name__ == "__main__":
    main()
