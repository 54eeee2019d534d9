"""Writes what commands print of each preset: ``config/PRESET.txt`` and ``plan/PRESET.txt``.

    python -m tests.golden.make [PRESET …]

A test runs the commands again and compares. Write the files anew after a change of a preset, of a
default or of the planner; read the difference, and say in the commit why there is one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.testing import CliRunner

from coevo_gym.cli import app
from coevo_gym.runs.config import preset_names

FOLDER = Path(__file__).parent
COMMANDS = {
    "config": "config show {}",
    "plan": "train {} --dry-run --card h100",
}


def file_of(kind: str, preset: str) -> Path:
    """The file with what a command printed of a preset."""
    return FOLDER / kind / f"{preset}.txt"


def command_output(kind: str, preset: str) -> str:
    """What a command prints of a preset, with nothing installed and no settings of a user."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as home:
        for name in list(os.environ):
            if name.startswith("COEVO_") or name == "COLUMNS":
                patch.delenv(name)
        patch.setenv("COEVO_HOME", home)
        arguments = COMMANDS[kind].format(preset).split()
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def make(presets: Sequence[str]) -> None:
    """Write the files of presets, and remove those of presets that are gone."""
    for kind in COMMANDS:
        (FOLDER / kind).mkdir(exist_ok=True)
        for path in (FOLDER / kind).glob("*.txt"):
            if path.stem not in preset_names():
                path.unlink()
        for preset in presets:
            file_of(kind, preset).write_text(command_output(kind, preset), encoding="utf-8")


if __name__ == "__main__":
    make(sys.argv[1:] or preset_names())
