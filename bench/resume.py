"""Does a run that is killed again and again end as one that nothing disturbed, with every method?

Trains each arm once in peace. Then trains it again, ends the process with SIGKILL at ten random
moments, resumes it after each, and compares the weights that both end with, bit by bit. A run that
is done before its kills are spent is compared, and another begun.

Run: python bench/resume.py   (two to five minutes an arm)
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from coevo_gym.core.registry import METHODS


class Runs:
    """Short runs of one arm in a folder of their own, each a process."""

    def __init__(self, arm: str, arguments: argparse.Namespace, folder: Path) -> None:
        self.arm, self.folder = arm, folder
        sets = [f"arms={arm}", f"loop.max_env_steps={arguments.steps}", *arguments.set]
        sets += ["store.checkpoint_every_steps=1", f"seed={arguments.seed}"]
        self.sets = [word for item in sets for word in ("--set", item)]

    def start(self, name: str) -> subprocess.Popen[str]:
        """Begin a run, or go on with it."""
        begun = (self.folder / "runs" / name / "manifest.json").is_file()
        verb = ["resume", name] if begun else ["train", "quickstart", "--name", name, "--overwrite"]
        return subprocess.Popen(
            [sys.executable, "-m", "coevo_gym.cli", *verb, *([] if begun else self.sets)],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, name: str) -> str:
        """Let a run come to its end; the hash of its weights."""
        process = self.start(name)
        errors = process.communicate()[1]
        if process.returncode:
            raise SystemExit(f"{self.arm}: {name} ended with {process.returncode}:\n{errors}")
        return self.weights(name)

    def weights(self, name: str) -> str:
        """The hash of what a run that is done has learned."""
        summary = json.loads((self.folder / "runs" / name / "summary.json").read_text())
        return str(summary["arms"][self.arm]["weights"])

    def killed_after(self, name: str, delay_s: float) -> bool:
        """Start or go on, and kill; whether there was anything left to kill."""
        process = self.start(name)
        try:
            errors = process.communicate(timeout=delay_s)[1]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return True
        if process.returncode:
            raise SystemExit(f"{self.arm}: {name} ended with {process.returncode}:\n{errors}")
        return False


def check(arm: str, arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Train an arm in peace and under fire."""
    runs, rng = Runs(arm, arguments, folder), np.random.default_rng(arguments.seed)
    started = time.perf_counter()
    peaceful = runs.finish("peace")
    whole_s = time.perf_counter() - started
    kills, ends, number = 0, [], 0
    while kills < arguments.kills:
        if runs.killed_after(f"fire-{number}", rng.uniform(0.2, 0.7) * whole_s):
            kills += 1
        else:
            ends.append(runs.weights(f"fire-{number}"))
            number += 1
    ends.append(runs.finish(f"fire-{number}"))
    same = all(end == peaceful for end in ends)
    return {"arm": arm, "kills": kills, "runs": len(ends), "weights": peaceful, "same": same}


def main() -> None:
    """Check all arms and print a table; 1 if any ended otherwise."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arms", nargs="+", default=METHODS.names(), help="default: every method")
    parser.add_argument("--steps", type=int, default=3000, help="loop.max_env_steps")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="section.key=value")
    parser.add_argument("--json", type=Path, help="also write the table there")
    arguments = parser.parse_args()
    rows = []
    print("| arm | kills | runs | weights | the same |\n|---|---|---|---|---|", flush=True)
    for arm in arguments.arms:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(check(arm, arguments, Path(folder)))
        row = {**rows[-1], "weights": str(rows[-1]["weights"])[:12]}
        print("| " + " | ".join(str(cell) for cell in row.values()) + " |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    sys.exit(not all(row["same"] for row in rows))


if __name__ == "__main__":
    main()
