"""A cell that another table has finished is used again, if everything that matters is equal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.core import own_code
from coevo_gym.runs import manifest
from coevo_gym.runs.experiments.cells import Cell, choose_cells
from coevo_gym.runs.experiments.definition import load_experiment
from coevo_gym.runs.experiments.running import find_identical_run
from coevo_gym.runs.folders.removing import delete_removable, find_removable
from coevo_gym.store.folder import RUNS, RunFolder, read_json, write_json
from coevo_gym.view.collection import RunCollection
from coevo_gym.view.library import Library
from coevo_gym.view.model.runs import run_detail
from tests import toy
from tests.runs.conftest import Child
from tests.runs.experiments.conftest import Coevo

ROWS = """
benchmarks = ["toy"]
baselines = ["static"]
seeds = [1]
[budgets.tiny.toy.set]
"policy.tiny.buckets" = 512
"policy.tiny.dim" = 16
"policy.tiny.hidden" = 32
"warmup.n_tasks" = 8
"warmup.max_epochs" = 1
"curriculum.initial_size" = 4
"rollout.group_size" = 4
"loop.max_steps" = 1
"loop.groups_per_step" = 2
"loop.evaluate_every_steps" = 0
"evaluation.n_tasks" = 6
[[rows]]
name = "static"
"""
OTHER = '[[rows]]\nname = "blind"\nmethod = "signal_blind"\n'


def write_tables(folder: Path) -> None:
    (folder / "first.toml").write_text(f'title = "First"\n{ROWS}')
    (folder / "second.toml").write_text(f'title = "Second"\n{ROWS}{OTHER}')


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the first table is finished."""
    cwd = tmp_path_factory.mktemp("first")
    write_tables(cwd)
    done = Child(cwd, "experiment", "first.toml")
    assert done.end() == 0, done.text
    return cwd


@pytest.fixture
def copied(first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which is the current folder."""
    shutil.copytree(first, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    toy.register()
    return tmp_path


def cell_of_second(seeds: str = "1", sets: tuple[str, ...] = ()) -> Cell:
    chosen = choose_cells(load_experiment("second.toml"), RUNS, seeds=seeds, sets=sets)
    return chosen.cells()[0]


def test_an_identical_cell_of_another_table_is_used_and_named(copied: Path, coevo: Coevo) -> None:
    there = Path("runs/first/static-1")
    before = {path: path.stat().st_mtime_ns for path in there.rglob("*") if path.is_file()}
    text = coevo("experiment", "second.toml", "--rows", "static")
    assert "static-1: the identical run runs/first/static-1 is used." in text
    assert "0 new cells, 0 resumed, 0 already finished, 1 used from other tables" in text
    here = Path("runs/second/static-1")
    assert here.is_symlink()
    assert here.resolve() == there.resolve()
    after = {path: path.stat().st_mtime_ns for path in there.rglob("*") if path.is_file()}
    assert after == before
    note = "static-1: the identical run runs/first/static-1 of another table is used."
    assert note in read_json(Path("runs/second/table.json"))["notes"]
    assert note in Path("runs/second/table.md").read_text()
    ours, theirs = (read_json(Path(f"runs/{name}/table.json")) for name in ("second", "first"))
    assert ours["lines"][0]["values"] == theirs["lines"][0]["values"]
    collection = RunCollection(Library())
    by_id = {run.id: run for run in collection.runs()}
    assert {"first~static-1", "second~static-1"} <= set(by_id)
    assert "runs/first/static-1" in run_detail(by_id["second~static-1"]).notes[0]
    assert "1 already finished" in coevo("experiment", "second.toml", "--rows", "static")


def test_fresh_runs_the_cell_anew(copied: Path, coevo: Coevo) -> None:
    text = coevo("experiment", "second.toml", "--rows", "static", "--fresh")
    assert "1 new cells, 0 resumed, 0 already finished. Table" in text
    assert not Path("runs/second/static-1").is_symlink()


def test_a_cell_whose_original_was_deleted_is_run(copied: Path, coevo: Coevo) -> None:
    coevo("experiment", "second.toml", "--rows", "static")
    delete_removable(find_removable("first"))
    assert not Path("runs/second/static-1").exists()
    text = coevo("experiment", "second.toml", "--rows", "static")
    assert "1 new cells" in text
    assert RunFolder(Path("runs/second/static-1")).summary.is_file()
    assert not Path("runs/second/static-1").is_symlink()


def test_deleting_the_table_that_uses_a_cell_leaves_the_original(
    copied: Path, coevo: Coevo
) -> None:
    coevo("experiment", "second.toml", "--rows", "static")
    delete_removable(find_removable("second"))
    assert not Path("runs/second").exists()
    assert RunFolder(Path("runs/first/static-1")).summary.is_file()


def test_another_setting_or_seed_is_another_cell(copied: Path) -> None:
    assert find_identical_run(cell_of_second()) is not None
    assert find_identical_run(cell_of_second(seeds="2,1")) is None
    for key, value in (("loop.max_steps", "2"), ("evaluation.n_tasks", "7"), ("learner.lr", "1")):
        assert find_identical_run(cell_of_second(sets=(f"{key}={value}",))) is None
    sinks = cell_of_second(sets=("sinks=tensorboard",))
    assert find_identical_run(sinks) is not None  # where metrics are sent does not matter


def change_manifest(part: str, value: Any) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        write_json(run / "manifest.json", {**read_json(run / "manifest.json"), part: value})

    return change


def change_identity(name: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        path = run / manifest.IDENTITY
        write_json(path, {**read_json(path), name: "0123456789abcdef"})

    return change


def run_twice(run: Path) -> None:
    entries = read_json(run / "manifest.json")["arithmetic"]
    change_manifest("arithmetic", entries * 2)(run)


DIFFERENT = {
    "versions": change_manifest("versions", {"coevo_gym": "0.0.1"}),
    "tasks": change_manifest("task_sets", {"training": "0", "held-out": "0"}),
    "model": change_manifest("model", "tiny-0"),
    "own code": change_manifest("plugins", {"mine.py": "0"}),
    "arithmetic": change_manifest(
        "arithmetic", [{"kind": "native", "processor": "other", "kernels": "other"}]
    ),
    "two arithmetics": run_twice,
    "source code": change_identity("coevo_gym"),
    "source code of the benchmark": change_identity("tests"),
    "data": change_identity("data shop"),
    "files of a model": change_identity("model smollm2"),
    "unfinished": lambda run: (run / "summary.json").unlink(),
    "unknown identity": lambda run: (run / manifest.IDENTITY).unlink(),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_run_that_differs_in_anything_is_not_used(what: str, copied: Path) -> None:
    assert find_identical_run(cell_of_second()) is not None
    DIFFERENT[what](Path("runs/first/static-1"))
    assert find_identical_run(cell_of_second()) is None


def test_the_identity_contains_the_source_and_all_files_that_the_settings_name(
    copied: Path,
) -> None:
    identity = read_json(Path("runs/first/static-1") / manifest.IDENTITY)
    assert {"coevo_gym", "tests"} <= set(identity)
    Path("prompt.j2").write_text("one")
    config = cell_of_second().config
    with_prompt = config.model_copy(
        update={"policy": config.policy.model_copy(update={"prompt": "prompt.j2"})}
    )
    before = manifest.training_hashes(with_prompt)
    Path("prompt.j2").write_text("two")
    after = manifest.training_hashes(with_prompt)
    assert before["file policy.prompt"] != after["file policy.prompt"]


def test_a_run_that_other_code_resumes_loses_its_identity(copied: Path) -> None:
    folder = RunFolder(Path("runs/first/static-1"))
    cell = cell_of_second()
    tasks = {"training": toy.BENCHMARK.tasks("train")}
    write_json(folder.path / manifest.IDENTITY, manifest.run_identity(cell.config, tasks))
    manifest.forget_changed_identity(folder, cell.config, tasks)
    assert (folder.path / manifest.IDENTITY).is_file()
    change_identity("coevo_gym")(folder.path)
    manifest.forget_changed_identity(folder, cell.config, tasks)
    assert not (folder.path / manifest.IDENTITY).exists()


def test_the_hash_of_a_package_covers_every_file(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("a.py", "inner/b.j2"):
        (tmp_path / name).write_text("1")
    files = own_code.files_below(tmp_path)
    assert [path.name for path in files] == ["a.py", "b.j2"]
    before = own_code.hash_files(files, tmp_path)
    (tmp_path / "inner/b.j2").write_text("2")
    assert own_code.hash_files(files, tmp_path) != before
    assert json.dumps(before)
