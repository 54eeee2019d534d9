"""The tables that are published with their cells: each follows from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from coevo_gym.experiments.cells import Cell
from coevo_gym.experiments.collecting import collect
from coevo_gym.experiments.definition import load
from coevo_gym.experiments.making import choose
from coevo_gym.experiments.writing import as_csv, as_json, markdown
from tests.experiments.conftest import Coevo

RESULTS = Path(__file__).parents[2] / "results"
PUBLISHED = sorted(path.parent.name for path in RESULTS.glob("*/table.md"))
KEPT = {"manifest.json", "summary.json", "cell.json"}


def finished(table: str) -> list[Cell]:
    chosen = choose(load(table), RESULTS)
    return [cell for cell in chosen.cells() if cell.state == "finished"]


def test_there_are_some() -> None:
    assert sorted(path.name for path in RESULTS.iterdir() if path.is_dir()) == PUBLISHED
    assert PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_table_follows_from_its_cells(name: str) -> None:
    cells = finished(name)
    assert {cell.folder.path for cell in cells} == {
        path for path in (RESULTS / name).iterdir() if path.is_dir()
    }
    for cell in cells:
        assert {path.name for path in cell.folder.path.iterdir()} == KEPT
    rows = tuple(dict.fromkeys(cell.row.name for cell in cells))
    seeds = ",".join(str(seed) for seed in sorted({cell.seed for cell in cells}))
    chosen = choose(load(name), RESULTS, rows=rows, seeds=f"{seeds},")
    found = collect(
        chosen.experiment,
        chosen.rows,
        chosen.cells(),
        benchmark=chosen.benchmark,
        budget=chosen.budget,
    )
    for ending, make in (("md", markdown), ("csv", as_csv), ("json", as_json)):
        assert (RESULTS / name / f"table.{ending}").read_text() == make(found)


@pytest.mark.parametrize("name", PUBLISHED)
def test_cells_that_were_copied_are_not_run_again(name: str, coevo: Coevo, tmp_path: Path) -> None:
    cell = finished(name)[0]
    copy = tmp_path / "runs" / name / cell.folder.path.name
    copy.mkdir(parents=True)
    for file in KEPT:
        (copy / file).write_bytes((cell.folder.path / file).read_bytes())
    said = coevo("experiment", name, "--rows", cell.row.name, "--seeds", f"{cell.seed},")
    assert "0 new cells, 0 resumed, 1 were there" in said
