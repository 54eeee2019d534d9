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


def test_a_library_without_names_lists_all_runs_and_evaluations() -> None:
    library = Library()
    assert list(library.runs()) == ["first", "table~static-1", "table~static-2"]
    assert list(library.evals()) == ["e"]
    assert list(library.tables()) == ["table"]
    assert library.home == ""


@pytest.mark.parametrize("name", ["table", "runs/table", "{here}/runs/table"])
def test_a_table_lists_its_runs_including_later_ones(name: str, folder: Path) -> None:
    library = Library([name.format(here=folder)])
    assert list(library.runs()) == ["table~static-1", "table~static-2"]
    assert library.home == "tables/table"
    put(folder / "runs/table/static-3/manifest.json")
    assert "table~static-3" in library.runs()
    assert not library.evals()


def test_the_name_of_a_run_in_a_table_includes_the_table() -> None:
    collection = RunCollection(Library())
    assert [run.name for run in map(collection.get_run, Library().runs())] == [
        "first",
        "table/static-1",
        "table/static-2",
    ]


def test_a_table_of_evaluations_is_listed_once_it_is_written(folder: Path) -> None:
    put(folder / "evals/models/large-shop-0/config.json")
    library = Library(["models"])
    assert (library.home, dict(library.eval_tables())) == ("", {})
    (folder / "evals/models/table.json").write_text("{}")
    assert library.home == "eval-tables/models"
    assert list(Library().eval_tables()) == ["models"]
    assert list(library.evals()) == ["models~large-shop-0"]
    assert not library.tables()


def test_a_single_run_or_evaluation_is_the_home_page() -> None:
    assert Library(["table/static-1"]).home == "runs/static-1"
    assert Library(["first", "runs/first"]).home == "runs/first"
    assert Library(["e"]).home == "evals/e"


def test_two_runs_with_one_name_get_different_ids(folder: Path) -> None:
    put(folder / "elsewhere/first/manifest.json")
    library = Library(["first", "elsewhere/first"])
    assert [run.path.parent.name for run in library.runs().values()] == ["runs", "elsewhere"]
    assert list(library.runs()) == ["first", "first~2"]


def test_a_symlinked_run_is_listed_under_the_name_of_the_link(folder: Path) -> None:
    put(folder / "elsewhere/second/manifest.json")
    (folder / "runs/linked").symlink_to(folder / "elsewhere/second")
    assert "linked" in Library().runs()


def test_the_current_folder_is_listed_under_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "runs/first")
    assert Library(["."]).home == "runs/first"


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'first'"):
        Library(["frist"])
    with pytest.raises(ConfigError, match="There is no run"):
        Library([""])
