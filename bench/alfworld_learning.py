"""Success of the tiny policy on ALFWorld with a fixed and an evolving task set, paired by seed.

The two arms of a seed start from the same warmed-up policy and initial task set D_0. Both spend the
same number of env steps, including exploration and replays. Policies are evaluated on all of
valid_seen (val) and valid_unseen (test) if the official games are installed, and otherwise on val
and test of the built-in scenes. The preset's settings were chosen on valid_seen, with only the
static arm of seed 1.

Run: python bench/alfworld_learning.py --seeds 3
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from io import StringIO
from pathlib import Path
from statistics import mean

from rich.console import Console

from coevo_gym.core.stats import wilson_interval
from coevo_gym.runs.config import load_config
from coevo_gym.runs.display import RunProgress
from coevo_gym.runs.evals.evaluation import evaluate_job
from coevo_gym.runs.evals.job import make_run_job
from coevo_gym.runs.train import train
from coevo_gym.store.folder import RunFolder
from coevo_gym.store.reader import RunReader

POLICIES = ("random", "warm-up", "static", "coevolve")
SPLITS = ("val", "test")
Counts = dict[tuple[str, str], tuple[int, int]]


def run_seed(seed: int, sets: list[str], base: Path) -> tuple[Counts, int]:
    """Return (solved, tried) by policy and split, and the number of scenes with evolved tasks."""
    folder = RunFolder(base / f"seed-{seed}")
    resolved = load_config(
        "alfworld",
        sets=[
            f"seed={seed}",
            "loop.evaluate_every_steps=0",
            "evaluation.n_tasks=1000",
            "store.record=none",
            *sets,
        ],
    )
    train(folder, resolved, RunProgress(Console(file=StringIO())), lambda: False)  # type: ignore[arg-type]
    counts: Counts = {}
    for split in SPLITS:
        for name in POLICIES:
            job = make_run_job(folder, name, split)
            row = job.row(evaluate_job(job))
            counts[name, split] = (round(row.success * row.n_tasks), row.n_tasks)
    scenes = {task.scenario for task in RunReader(folder.database).tasks(origin="evolved")}
    return counts, len(scenes)


def main() -> None:
    """Run all seeds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--jobs", type=int, default=2, help="seeds to run in parallel")
    parser.add_argument(
        "--set", action="append", default=[], help="a setting, as section.key=value"
    )
    arguments = parser.parse_args()
    started, seeds = time.time(), range(1, arguments.seeds + 1)
    results, scenes = [], []
    with tempfile.TemporaryDirectory() as base, ProcessPoolExecutor(arguments.jobs) as pool:
        runs = [pool.submit(run_seed, seed, arguments.set, Path(base)) for seed in seeds]
        for seed, run in zip(seeds, runs, strict=True):
            counts, n_scenes = run.result()
            results.append(counts)
            scenes.append(n_scenes)
            text = ", ".join(f"{n} {s} {k}/{of}" for (n, s), (k, of) in counts.items())
            print(f"seed {seed}, {n_scenes} scenes: {text}", flush=True)
    minutes = (time.time() - started) / 60
    print(f"\nPython {platform.python_version()}, {time.strftime('%Y-%m-%d')}, {minutes:.0f} min\n")
    print("| policy | split | success | 95 % interval, all seeds pooled | by seed |")
    print("|---|---|---|---|---|")
    for split in SPLITS:
        for name in POLICIES:
            each = [result[name, split] for result in results]
            solved, tried = sum(k for k, _ in each), sum(n for _, n in each)
            low, high = wilson_interval(solved, tried)
            rates = ", ".join(f"{k / n:.1%}" for k, n in each)
            cells = (name, split, f"{solved / tried:.1%}", f"{low:.1%} – {high:.1%}", rates)
            print("| " + " | ".join(cells) + " |")
    print(f"\nScenes with evolved tasks: {min(scenes)} to {max(scenes)}, mean {mean(scenes):.0f}.")


if __name__ == "__main__":
    main()
