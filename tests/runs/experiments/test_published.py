"""The tables that are published with their cells: each follows from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from coevo_gym.runs.experiments.cells import Chosen, choose_cells
from coevo_gym.runs.experiments.definition import load_experiment
from coevo_gym.runs.experiments.making import export_cells
from coevo_gym.runs.experiments.records import read_records
from tests.runs.experiments.conftest import Coevo

RESULTS = Path(__file__).parents[3] / "results"
PUBLISHED = sorted(path.stem for path in RESULTS.glob("*.jsonl"))


def choose(file: str, runs: Path) -> Chosen:
    """The table of a file, whose name ends with the benchmark if it is not the table's first."""
    name, _, benchmark = file.partition("-")
    return choose_cells(load_experiment(name), runs, benchmark=benchmark or None)


def test_each_published_file_of_cells_has_its_table() -> None:
    names = {f"{name}{ending}" for name in PUBLISHED for ending in (".jsonl", ".md")}
    assert PUBLISHED
    assert {path.name for path in RESULTS.iterdir()} == {"README.md", *names}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_table_follows_from_its_cells(name: str, tmp_path: Path) -> None:
    copy = tmp_path / f"{name}.jsonl"
    copy.write_bytes((RESULTS / copy.name).read_bytes())
    export_cells(choose(name, tmp_path / "runs"), copy)
    for ending in (".jsonl", ".md"):
        published = (RESULTS / name).with_suffix(ending)
        assert copy.with_suffix(ending).read_text() == published.read_text()


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_cells_are_not_run_again(name: str, coevo: Coevo) -> None:
    file = RESULTS / f"{name}.jsonl"
    row, seed = next(iter(read_records(file).values())).row_and_seed
    table, _, benchmark = name.partition("-")
    chosen = ["--from", str(file), "--rows", row, "--seeds", f"{seed},"]
    chosen += ["--benchmark", benchmark] if benchmark else []
    assert "0 new cells, 0 resumed, 1 already finished" in coevo("experiment", table, *chosen)
