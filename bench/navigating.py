"""Success of the unguided half of rollouts, with AgentEvolver's navigating on and off.

Trains the tiny policy on WebShop with the method `agentevolver`, twice per seed: with experiences
told to half of each group, and without. Labels are off in both, so the arms differ in navigating
alone. Compares success over the last steps: with navigating, of the rollouts that are told nothing
(`memory.experiences.success_free`); without it, of all rollouts. Prints both per seed, and the mean
difference with its 95 % interval, paired over seeds.

The tiny policy cannot read cues. So this checks that navigating does no harm by its bookkeeping:
expect no difference. Whether experiences help needs a language model.

Run: python bench/navigating.py [--steps 100] [--seeds 3] [--last 20]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import coevo_gym
from coevo_gym.core.stats import paired
from coevo_gym.store.folder import read_lines

ARM = "agentevolver"
FREE = "memory.experiences.success_free"


def success(folder: Path, key: str, last: int) -> float:
    """Return the mean success over the last steps of a run."""
    lines = [line for line in read_lines(folder / "metrics.jsonl") if line["event"] == "step"]
    return fmean(line[key] for line in lines[-last:] if key in line)


def train(folder: Path, seed: int, steps: int, *, navigating: bool) -> Path:
    """Train one arm, and return its folder."""
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
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all seeds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100, help="learner steps per run")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 1")
    parser.add_argument("--last", type=int, default=20, help="steps whose success is averaged")
    options = parser.parse_args(arguments)
    print("| seed | unguided half, navigating on | all, navigating off | difference | CPU s |")
    print("|---|---|---|---|---|")
    free, every = list[float](), list[float]()
    for seed in range(1, options.seeds + 1):
        started = time.process_time()
        with tempfile.TemporaryDirectory() as name:
            on = train(Path(name) / "on", seed, options.steps, navigating=True)
            off = train(Path(name) / "off", seed, options.steps, navigating=False)
            free.append(success(on, FREE, options.last))
            every.append(success(off, "success", options.last))
        both = f"{free[-1]:.1%} | {every[-1]:.1%} | {free[-1] - every[-1]:+.1%}"
        print(f"| {seed} | {both} | {time.process_time() - started:.0f} |", flush=True)
    found = paired(free, every)
    print(f"difference {found.mean:+.1%}, 95 % interval {found.low:+.1%} to {found.high:+.1%}")


if __name__ == "__main__":
    main()
