"""Writes small runs, an evaluation and a table as this version does: ``older/NAME.tar.xz``.

    python -m tests.golden.older NAME

A test opens what every older version wrote. Add an archive when what is stored is about to change;
do not write an old one again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

FOLDER = Path(__file__).parent / "older"
TESTS = Path(__file__).parents[1]
NEEDED = (TESTS / "runs" / "toy.toml", TESTS / "runs" / "experiments" / "toy_table.toml")
SMALL = "--set policy.tiny.buckets=64"
COMMANDS = (
    ("tests.runs.child", f"train toy.toml --name whole {SMALL}"),
    ("tests.runs.child", "eval whole --samples 2 --name twice"),
    ("tests.runs.child", f"experiment toy_table.toml --seeds 1 --name table {SMALL}"),
    ("tests.golden.stops 42", f"train toy.toml --name cut {SMALL}"),
)
"""Modules that are the ``coevo`` command, and what they are asked."""


def make(name: str) -> None:
    """Write an archive of this version."""
    FOLDER.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        for file in NEEDED:
            shutil.copy(file, folder)
        for module, arguments in COMMANDS:
            subprocess.run(
                [sys.executable, "-m", *module.split(), *arguments.split()],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
                check="stops" not in module,
            )
        with tarfile.open(FOLDER / f"{name}.tar.xz", "w:xz") as archive:
            for part in ("runs", "evals"):
                archive.add(Path(folder) / part, part, filter=_needed)


def _needed(file: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what is made again, and whose machine it was."""
    file.uname = file.gname = ""
    again = file.name.endswith("report.html") or (
        file.name.endswith(".pt") and "cut" not in file.name
    )
    return None if again else file


if __name__ == "__main__":
    make(sys.argv[1])
