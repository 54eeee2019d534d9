"""Speed of `coevo export` in each format, on a generated run with many episodes.

The run is that of ``bench/viewer.py``: the pages of the built-in shop, with choices and advantages.

Run: python bench/export.py                      # 50,000 episodes in a temporary folder
     python bench/export.py --episodes 5000      # fewer episodes
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from pathlib import Path

from viewer import make_run

from coevo_gym.store.folder import RunFolder
from coevo_gym.view.data.write import DataFormat, export_episodes

FORMATS: tuple[DataFormat, ...] = ("jsonl", "messages", "parquet", "atif")
WANTED = 2_000
"""Minimum number of episodes per second as JSON Lines."""


def main() -> None:
    """Export the run in each format, and print the speed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=50_000)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    arguments = parser.parse_args()
    print(f"Python {platform.python_version()} on {platform.machine()}")
    with tempfile.TemporaryDirectory() as temporary:
        run = RunFolder(Path(temporary) / "many")
        make_run(run, arguments.episodes)
        for format in arguments.formats:
            target = Path(temporary) / format
            wall, cpu = time.perf_counter(), time.process_time()
            export = export_episodes(str(run.path), target, format)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            n = sum(export.episodes.values())
            size = sum(file["bytes"] for file in export.files.values())
            print(
                f"{format:8}  {n:,} episodes  {wall:.1f} s  {cpu:.1f} s of CPU time  "
                f"{n / cpu:,.0f} episodes per CPU second  {size / 1e6:.0f} MB"
            )


if __name__ == "__main__":
    main()
