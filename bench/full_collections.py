"""Cost of Python's full garbage collections in an ALFWorld run, by default and when made rare.

The tiny policy is trained with both settings of the garbage collector, each time in a new process:
imitation of 80 walkthroughs, then 12,000 env steps of GRPO. An extra run comes first, because it
fills the cache of the planner's translations. Uses the official games if they are installed.

Run: python bench/full_collections.py     # about 4 minutes
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SETS = (
    "arms=static", "warmup.n_tasks=80", "warmup.max_epochs=2", "evaluation.n_tasks=40",
    "benchmark.hold_out=0.2", "evaluation.split=held_out",
)  # fmt: skip
USUAL = gc.get_threshold()[2]


def measure_training(seldom: int, env_steps: int) -> dict[str, float]:
    """Train with at most one full collection per ``seldom`` middle-generation collections."""
    from rich.console import Console

    from coevo_gym.episodes import live as garbage
    from coevo_gym.runs.config import load_config
    from coevo_gym.runs.display import RunProgress
    from coevo_gym.runs.train import train
    from coevo_gym.store.folder import RunFolder

    garbage.SELDOM = seldom
    n, spent, began = 0, 0.0, 0.0

    def watch(phase: str, info: dict[str, Any]) -> None:
        nonlocal n, spent, began
        if info["generation"] == 2 and phase == "start":
            began = time.process_time()
        elif info["generation"] == 2:
            n, spent = n + 1, spent + time.process_time() - began

    gc.callbacks.append(watch)
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        sets = [*SETS, f"loop.max_env_steps={env_steps}"]
        resolved = load_config("alfworld", sets=sets, environ={})
        progress = RunProgress(Console(stderr=True, quiet=True))
        summary = train(RunFolder(Path(folder) / "run"), resolved, progress, lambda: False)
    cpu = time.process_time() - started
    weights = int(summary.arms["static"]["weights"][:12], 16)
    return {"cpu_s": cpu, "full": n, "full_s": spent, "weights": weights}


def measure_in_process(seldom: int, env_steps: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--seldom", str(seldom), "--env-steps", str(env_steps)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    numbers: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seldom", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--env-steps", type=int, default=12_000, help="env steps per run")
    arguments = parser.parse_args()
    steps = arguments.env_steps
    if arguments.seldom is not None:
        print(json.dumps(measure_training(arguments.seldom, steps)))
        return
    from coevo_gym.episodes.live import SELDOM

    measure_in_process(SELDOM, steps)
    ways = {
        "Python's default": measure_in_process(USUAL, steps),
        "made rare": measure_in_process(SELDOM, steps),
    }
    print("| full collections | CPU time of the run | their share | number |\n|---|---|---|---|")
    for name, way in ways.items():
        share = way["full_s"] / way["cpu_s"]
        print(f"| {name} | {way['cpu_s']:.0f} s | {share:.0%} | {way['full']:.0f} |")
    same = len({way["weights"] for way in ways.values()}) == 1
    print(f"The trained weights are {'equal' if same else 'NOT equal'}.")


if __name__ == "__main__":
    main()
