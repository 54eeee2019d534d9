"""Official data is taken from a folder or downloaded, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest

import coevo_gym
from coevo_gym.core.errors import DataError, EnvBackendError
from coevo_gym.envs.appworld import setup

FAKE_ENGINE = """#!/bin/sh
# Stands in for the engine's interpreter: `appworld download data --root DIR`.
root=$7
{work}
"""


@pytest.fixture
def home(appworld_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the engine, and no data."""
    folder = tmp_path / "home" / "appworld"
    folder.mkdir(parents=True)
    (folder / "engine").symlink_to(appworld_root.parent / "engine")
    monkeypatch.setenv("COEVO_HOME", str(folder.parent))
    return folder


def fake_engine(home: Path, work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = home / "fake-python"
    script.write_text(FAKE_ENGINE.format(work=work))
    script.chmod(0o755)
    monkeypatch.setattr(setup, "engine_python", lambda: script)


def test_official_data_installed_from_a_folder_can_be_played(
    appworld_root: Path, home: Path
) -> None:
    setup.install(appworld_root)
    assert setup.installation().data == f"81 official tasks ({home / 'data'})"
    task = coevo_gym.tasks("appworld", "test", "test_normal")[0]
    with gym.make("CoEvolve-AppWorld-v0", split="test", tasks=[task.name]) as env:
        env.reset(seed=0)
        for action in task.solution:
            _, reward, terminated, _, info = env.step(action)
        assert (reward, terminated, info["end_reason"]) == (1.0, True, "solved")


def test_incomplete_data_does_not_replace_the_installed_data(
    appworld_root: Path, home: Path, tmp_path: Path
) -> None:
    setup.install(appworld_root)
    part = tmp_path / "part"
    (part / "data").mkdir(parents=True)
    (part / "data" / "tasks").symlink_to(appworld_root / "data" / "tasks")
    with pytest.raises(DataError, match="api_docs"):
        setup.install(part)
    assert setup.installation().data.startswith("81 official tasks")


def test_a_download_installs_all_official_data(
    appworld_root: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_engine(home, f'cp -r {appworld_root}/data "$root/data"', monkeypatch)
    setup.download()
    assert setup.installation().data == f"81 official tasks ({home / 'data'})"
    assert sorted(path.name for path in (home / "data").iterdir()) == sorted(
        path.name for path in (appworld_root / "data").iterdir()
    )


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ("echo no route >&2; exit 3", "no route\nDownload it on a machine with a network"),
        ("exit 0", "did not create any data. Download it on a machine with a network"),
    ],
)
def test_the_error_of_a_failed_download_names_the_alternative(
    work: str, message: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_engine(home, work, monkeypatch)
    with pytest.raises(EnvBackendError) as caught:
        setup.download()
    assert message in str(caught.value)
    assert "coevo install appworld --from DIR" in str(caught.value)
    assert not (home / "data").exists()


def test_installing_without_a_source_builds_the_built_in_world(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[Path] = []
    monkeypatch.setattr(setup, "ensure_builtin_root", lambda: paths.append(home) or home)
    assert setup.install(None) == home
    assert paths == [home]
