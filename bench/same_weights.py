"""Check by hashes of weights that a code change leaves training unchanged to the last bit.

Trains `static` and `coevolve`, or the methods in --arms, with the quickstart's settings for each
seed, and prints the hash of each arm's weights. Equal hashes mean that all random draws, their
order and all arithmetic are equal. The runs use portable arithmetic, so files from different x86-64
machines can be compared, as long as PyTorch has the same version. The script runs the `coevo` that
is installed for its interpreter, so it can check any checkout.

Run: python bench/same_weights.py                          # about a minute per seed on one core
     python bench/same_weights.py --json before.json       # on the commit before the change
     python bench/same_weights.py --against before.json    # after it; exit code 1 if different
     python bench/same_weights.py --arms static,coevolve,ppo,gigpo,seal     # more methods
     python bench/same_weights.py --steps 3000   # shorter; no round, so both arms are equal
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

Hashes = dict[str, dict[str, str]]
"""Hashes by seed, then by arm."""


def train_and_hash(seed: int, arms: Sequence[str], steps: int, folder: Path) -> dict[str, str]:
    """Train the arms in one short run, and return the hash of each arm's weights."""
    command = [sys.executable, "-m", "coevo_gym.cli", "train", "quickstart"]
    command += ["--name", f"seed-{seed}", "--set", f"seed={seed}"]
    command += ["--set", f"arms={','.join(arms)}", "--set", f"loop.max_env_steps={steps}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"seed {seed}: coevo train failed with exit code {done.returncode}:\n{done.stderr}"
        )
    summary = json.loads((folder / "runs" / f"seed-{seed}" / "summary.json").read_text())
    return {arm: summary["arms"][arm]["weights"] for arm in arms}


def differences(now: Hashes, before: Hashes) -> list[str]:
    """Return a line for each seed and arm whose hash differs or is missing in ``before``."""
    shared = [seed for seed in now if seed in before]
    if not shared:
        return [f"the file has none of the seeds {', '.join(now)}"]
    return [
        f"seed {seed}, {arm}: {now[seed][arm][:12]} instead of {before[seed].get(arm, 'none')[:12]}"
        for seed in shared
        for arm in now[seed]
        if now[seed][arm] != before[seed].get(arm)
    ]


def main() -> None:
    """Print a table of hashes, and compare them with a file if requested."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=12_000, help="loop.max_env_steps per arm")
    parser.add_argument(
        "--arms",
        type=lambda text: text.split(","),
        default=["static", "coevolve"],
        help="methods, separated by commas (static,coevolve)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path, help="also write the hashes to this file")
    parser.add_argument("--against", type=Path, help="compare with a file of --json")
    arguments = parser.parse_args()
    before = json.loads(arguments.against.read_text()) if arguments.against else None
    if before is not None and before["steps"] != arguments.steps:
        parser.error(f"{arguments.against} was written with --steps {before['steps']}")
    hashes: Hashes = {}
    print("| seed | arm | weights |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for seed in arguments.seeds:
            hashes[str(seed)] = train_and_hash(seed, arguments.arms, arguments.steps, Path(folder))
            for arm, digest in hashes[str(seed)].items():
                print(f"| {seed} | {arm} | {digest} |", flush=True)
    if arguments.json:
        numbers = {"steps": arguments.steps, "weights": hashes}
        arguments.json.write_text(json.dumps(numbers, indent=2) + "\n")
    if before is not None:
        problems = differences(hashes, before["weights"])
        print("\n".join(problems) or "The weights are equal.")
        sys.exit(bool(problems))


if __name__ == "__main__":
    main()
