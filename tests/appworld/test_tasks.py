"""Where native tasks come from; the built-in world's files stand in for the official ones."""

from __future__ import annotations

from pathlib import Path

import pytest

import coevo_gym
from coevo_gym.core.errors import BenchmarkNotInstalled, BuildError, DataError, TaskError
from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import NATIVE_SPLITS, Split
from coevo_gym.envs.appworld.builder import build
from coevo_gym.envs.appworld.tasks import OFFICIAL, ensure_root, split_of
from coevo_gym.envs.appworld.world import AppWorldWorld


@pytest.fixture
def data(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data in the official layout, in use for this test."""
    folder = tmp_path / "data"
    folder.symlink_to(root / "data")
    monkeypatch.setenv("COEVO_APPWORLD_DATA", str(folder))
    return folder


@pytest.mark.parametrize(
    ("subset", "split"),
    [("train", Split.TRAIN), ("dev", Split.VAL), ("test_normal", Split.TEST)],
)
def test_official_subsets_keep_their_names_and_belong_to_one_split(
    data: Path, subset: str, split: Split
) -> None:
    tasks = coevo_gym.tasks("appworld", split, subset)
    assert [task.name for task in tasks] == [
        f"appworld/{base}" for base in (data / "datasets" / f"{subset}.txt").read_text().split()
    ]
    for task in tasks:
        assert (task.subset, task.split) == (subset, split)
        assert split_of(task.scenario) is split
    builtin = coevo_gym.tasks("appworld", split, "builtin")
    assert {task.scenario for task in builtin}.isdisjoint(task.scenario for task in tasks)
    other = next(side for side in NATIVE_SPLITS if side is not split)
    with pytest.raises(TaskError, match=f"{subset} belongs to the {split} split"):
        coevo_gym.tasks("appworld", other, subset)


def test_the_data_setting_may_name_the_folder_above_the_data(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COEVO_APPWORLD_DATA", str(data.parent))
    assert ensure_root(OFFICIAL) == data.parent


def test_a_data_setting_that_names_no_data_folder_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "appworld-data"
    other.symlink_to(data)
    monkeypatch.setenv("COEVO_APPWORLD_DATA", str(other))
    with pytest.raises(DataError, match="needs a folder named data"):
        coevo_gym.tasks("appworld")
    monkeypatch.setenv("COEVO_APPWORLD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="Missing: api_docs"):
        coevo_gym.tasks("appworld")


def test_official_subsets_without_official_data_raise(root: Path) -> None:
    with pytest.raises(BenchmarkNotInstalled, match="coevo install appworld --data"):
        coevo_gym.tasks("appworld", "train", "train")
    with pytest.raises(TaskError, match="AppWorld has no subset 'hard'"):
        coevo_gym.tasks("appworld", "train", "hard")
    with pytest.raises(TaskError, match="no scenario 'builtin/0000000'"):
        split_of("builtin/0000000")


def test_a_task_of_another_version_of_the_built_in_world_is_refused(root: Path) -> None:
    task = coevo_gym.tasks("appworld")[0]
    assert isinstance(task.world, AppWorldWorld)
    assert task.world.data == root.name
    old = task.world.model_copy(update={"data": "builtin-000000000000"})
    with pytest.raises(DataError, match="was created with version"):
        ensure_root(old.data)
    draft = Draft(
        benchmark="appworld",
        scenario=task.scenario,
        instruction="Do it.",
        world=old,
        solution=("x = 1",),
    )
    with pytest.raises(BuildError, match=r"not available: .*was created with version"):
        build(draft)
