"""What older versions wrote still opens, in every command that reads it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from coevo_gym import cli
from coevo_gym.view.api import answer
from coevo_gym.view.library import Library
from coevo_gym.view.shelf import Shelf
from tests.golden.older import FOLDER, NEEDED

Coevo = Callable[..., str]


@pytest.fixture(params=sorted(FOLDER.glob("*.tar.xz")), ids=lambda path: path.name.split(".")[0])
def there(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the runs, the table and the evaluation of one older version."""
    with tarfile.open(request.param) as archive:
        # The filter exists from Python 3.11.4 on.
        archive.extractall(
            tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )
    for file in NEEDED:
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def coevo(
    there: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Coevo:
    """Runs a command in that folder; returns what it printed."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["coevo", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        done = capsys.readouterr()
        assert exit_.value.code == 0, done.out + done.err
        return done.out

    return run


def draws(run: Path, arm: str, until: int) -> list[tuple[int, str]]:
    """The tasks of an arm's groups up to a step, in order."""
    with closing(sqlite3.connect(run / "run.db")) as database:
        query = "SELECT step, task_id FROM groups WHERE arm = ? AND step <= ? ORDER BY step, id"
        return list(database.execute(query, (arm, until)))


def test_a_run_that_was_cut_goes_on_as_the_whole_one(there: Path, coevo: Coevo) -> None:
    """It was cut after step 3 of its second arm.

    What step 4 draws depends on all that was stored; what its update yields, on the processor.
    """
    before = json.loads((there / "runs" / "cut" / "manifest.json").read_text())
    assert "arithmetic" not in before
    coevo("resume", "cut")
    cut, whole = (
        json.loads((there / "runs" / name / "summary.json").read_text())
        for name in ("cut", "whole")
    )
    assert cut["arms"]["static"]["weights"] == whole["arms"]["static"]["weights"]
    for arm, until in (("static", 6), ("coevolve", 4)):
        assert cut["arms"][arm]["steps"] == whole["arms"][arm]["steps"] == 6
        drawn, wanted = (draws(there / "runs" / name, arm, until) for name in ("cut", "whole"))
        assert drawn == wanted
    after = json.loads((there / "runs" / "cut" / "manifest.json").read_text())
    assert len(after["arithmetic"]) == 1
    found = json.loads(coevo("eval", "cut", "--samples", "2", "--json"))
    assert found["n_tasks"] == 10


def test_reports_and_comparisons_are_made(there: Path, coevo: Coevo) -> None:
    coevo("report", "whole")
    assert "coevolve" in (there / "runs" / "whole" / "report.html").read_text()
    for sides in (("whole",), ("twice", "whole"), ("whole", "cut")):
        assert json.loads(coevo("compare", *sides, "--json"))["tasks"] == 10


def test_a_table_is_printed_again(there: Path, coevo: Coevo) -> None:
    before = (there / "runs" / "table" / "table.md").read_text()
    coevo("experiment", "toy_table.toml", "--seeds", "1", "--name", "table",
          "--set", "policy.tiny.buckets=64")  # fmt: skip
    assert (there / "runs" / "table" / "table.md").read_text() == before


def test_the_viewer_shows_all_of_it(there: Path, coevo: Coevo) -> None:
    shelf = Shelf(Library())
    found = json.loads(answer(shelf, "runs", ""))
    runs = {"cut", "whole", "table~blind-1", "table~static-1"}
    assert {run["id"] for run in found["runs"]} == runs
    assert not [run for run in found["runs"] if run["problem"]]
    (evaluation,) = found["evals"]
    assert (evaluation["done"], evaluation["total"]) == (20, 20)
    for run in runs:
        arms = json.loads(answer(shelf, f"runs/{run}", ""))["arms"]
        assert {arm["name"] for arm in arms} & {"static", "blind"}
    exported = coevo("view", "whole", "table", "twice", "--with-episodes", "--export", "pages.html")
    assert "pages.html" in exported
    assert (there / "pages.html").is_file()
