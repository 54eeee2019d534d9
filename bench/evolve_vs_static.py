"""Success of four curricula on WebShop, to show the effect of new tasks and of their signals.

All arms of a seed start from the same warmed-up policy and initial task set D_0, and spend the same
number of env steps, including exploration and gate replays:

    static         trains on D_0 only
    random_append  adds tasks found anywhere in the training scenarios in each round
    signal_blind   explores around recent training tasks, regardless of their outcomes
    coevolve       explores around tasks with forgetting, boundary or rare signals

The settings of the learner and of coevolve were chosen on the validation split; the results are on
the test split.

Run: python bench/evolve_vs_static.py     # about 2 minutes per seed on one core
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from io import StringIO
from math import comb
from pathlib import Path
from statistics import mean, stdev

from rich.console import Console

from coevo_gym.runs.config import load_config
from coevo_gym.runs.display import RunProgress
from coevo_gym.runs.train import train
from coevo_gym.store.folder import RunFolder

ARMS = ("static", "random_append", "signal_blind", "coevolve")
PAIRS = (
    ("random_append", "static"),
    ("signal_blind", "static"),
    ("coevolve", "static"),
    ("coevolve", "random_append"),
    ("coevolve", "signal_blind"),
)


def run_seed(seed: int, sets: list[str], folder: Path) -> dict[str, float]:
    """Train all arms for one seed; return the success of each arm and baseline."""
    resolved = load_config(
        "quickstart",
        sets=[
            f"seed={seed}",
            f"arms={','.join(ARMS)}",
            "evaluation.split=test",
            "evaluation.n_tasks=400",
            "loop.evaluate_every_steps=0",
            "store.record=none",
            *sets,
        ],
    )
    quiet = RunProgress(Console(file=StringIO()))
    summary = train(RunFolder(folder / f"seed-{seed}"), resolved, quiet, lambda: False)  # type: ignore[arg-type]
    return {row.name: row.success for row in summary.table}


def sign_test(differences: list[float]) -> float:
    """Return the two-sided p-value of a sign test that ignores ties."""
    wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    n, k = wins + losses, min(wins, losses)
    return min(1.0, 2 * sum(comb(n, i) for i in range(k + 1)) / 2**n) if n else 1.0


def main() -> None:
    """Run all seeds and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds, at least 2")
    parser.add_argument(
        "--set", action="append", default=[], help="a setting, as section.key=value"
    )
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    started, results = time.time(), []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, arguments.seeds + 1):
            results.append(run_seed(seed, arguments.set, Path(folder)))
            text = ", ".join(f"{name} {value:.1%}" for name, value in results[-1].items())
            print(f"seed {seed}: {text}", flush=True)
    minutes = (time.time() - started) / 60
    print(
        f"\nPython {platform.python_version()}, {platform.machine()}, {time.strftime('%Y-%m-%d')}"
    )
    print(f"{arguments.seeds} paired seeds, {minutes:.0f} minutes\n")
    print("| policy | mean success on test | standard deviation | lowest | highest |")
    print("|---|---|---|---|---|")
    for name in results[0]:
        values = [result[name] for result in results]
        cells = (mean(values), stdev(values), min(values), max(values))
        print(f"| {name} | " + " | ".join(f"{cell:.1%}" for cell in cells) + " |")
    print("\n| pair | mean difference | wins | sign test p |")
    print("|---|---|---|---|")
    for one, other in PAIRS:
        differences = [result[one] - result[other] for result in results]
        wins = f"{sum(d > 0 for d in differences)} of {len(differences)}"
        p = sign_test(differences)
        print(f"| {one} − {other} | {100 * mean(differences):+.1f} points | {wins} | {p:.3f} |")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
