"""What a viewer shows, by the ids that paths call it."""

from __future__ import annotations

from pathlib import Path

import pytest

from coevo_gym.core.errors import ConfigError
from coevo_gym.view.collection import RunCollection
from coevo_gym.view.library import Library


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run, a table of two runs, and an evaluation."""
    monkeypatch.chdir(tmp_path)
    for name in ("runs/first", "runs/table/static-1", "runs/table/static-2"):
        put(tmp_path / name / "manifest.json")
    put(tmp_path / "evals/e" / "config.json")
    return tmp_path


def put(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("{}")


def test_all_is_shown_the_runs_of_tables_among_it() -> None:
    library = Library()
    assert list(library.runs()) == ["first", "table~static-1", "table~static-2"]
    assert list(library.evals()) == ["e"]
    assert library.home == ""


@pytest.mark.parametrize("name", ["table", "runs/table", "{here}/runs/table"])
def test_a_table_is_shown_with_the_runs_that_come_later(name: str, folder: Path) -> None:
    library = Library([name.format(here=folder)])
    assert list(library.runs()) == ["table~static-1", "table~static-2"]
    assert library.home == ""
    put(folder / "runs/table/static-3/manifest.json")
    assert "table~static-3" in library.runs()
    assert not library.evals()


def test_a_run_of_a_table_is_called_by_both() -> None:
    collection = RunCollection(Library())
    assert [run.name for run in map(collection.run, Library().runs())] == [
        "first",
        "table/static-1",
        "table/static-2",
    ]


def test_one_thing_is_shown_at_once() -> None:
    assert Library(["table/static-1"]).home == "runs/static-1"
    assert Library(["first", "runs/first"]).home == "runs/first"
    assert Library(["e"]).home == "evals/e"


def test_two_of_one_name_are_told_apart(folder: Path) -> None:
    put(folder / "elsewhere/first/manifest.json")
    library = Library(["first", "elsewhere/first"])
    assert [run.path.parent.name for run in library.runs().values()] == ["runs", "elsewhere"]
    assert list(library.runs()) == ["first", "first~2"]


def test_a_link_is_shown_under_its_own_name(folder: Path) -> None:
    put(folder / "elsewhere/second/manifest.json")
    (folder / "runs/linked").symlink_to(folder / "elsewhere/second")
    assert "linked" in Library().runs()


def test_the_folder_at_hand_has_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "runs/first")
    assert Library(["."]).home == "runs/first"


def test_a_name_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'first'"):
        Library(["frist"])
    with pytest.raises(ConfigError, match="There is no run"):
        Library([""])
