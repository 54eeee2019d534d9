"""The script that compares curricula in the simulated worlds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from simulate import ROWS, lines_of, simulation_of, summary
from simulated.worlds import WORLDS

from coevo_gym.core.errors import ConfigError

SCRIPT = Path(__file__).parents[2] / "bench" / "simulate.py"


def test_all_rows_have_valid_settings_in_all_their_worlds() -> None:
    for name, row in ROWS.items():
        assert {*row.baselines} <= ROWS.keys()
        for world in row.worlds or WORLDS:
            simulation = simulation_of(name, row, world)
            assert simulation.world is WORLDS[world]
            assert simulation.curriculum.initial_size == simulation.world.first_tasks
            assert (simulation.proof is False) is (name == "unproven")


def test_an_unknown_world_in_a_row_is_refused() -> None:
    with pytest.raises(ConfigError, match="Unknown world 'flat'"):
        simulation_of("static", ROWS["static"], "flat")


def test_a_row_counts_as_better_if_its_interval_is_above_0() -> None:
    better = {"static": [0.1, 0.2, 0.3], "random_append": [0.3, 0.41, 0.5]}
    worse = {"static": [0.5, 0.6], "random_append": [0.5, 0.6]}
    lines = {
        "plain": [*lines_of(better)],
        "skew": [*lines_of(worse)],
        "skewed": [*lines_of(better)],
    }
    assert [*summary(lines)] == [
        "static against random_append: the interval lies above 0 in 0 of 2 worlds and below in 1; "
        "5 points or more in 0.",
        "random_append against static: the interval lies above 0 in 1 of 2 worlds and below in 0; "
        "5 points or more in 1.",
    ]
    assert [*summary({"null": [*lines_of(better)]})] == [
        "null: the means of all rows lie within 20.3 points."
    ]


def test_the_script_prints_rows_of_a_world() -> None:
    chosen = [
        "--worlds",
        "plain",
        "--rows",
        "static",
        "random_append",
        "--seeds",
        "1-2",
        "--jobs",
        "1",
    ]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *chosen], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("plain, 2 seeds\n")
    rates = dict(re.findall(r"^  (\w+) +(\d+\.\d)%", done.stdout, re.M))
    assert float(rates["random_append"]) > float(rates["static"])
