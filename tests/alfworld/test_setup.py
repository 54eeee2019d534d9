"""The engine goes into this environment, the official games into ALFWorld's own folder."""

from __future__ import annotations

import json
import logging
import lzma
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import pytest

from coevo_gym import provision
from coevo_gym.core.errors import DataError, EnvBackendError
from coevo_gym.envs.alfworld import data, setup
from tests.conftest import OFFICIAL_ALFWORLD


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ALFWorld's folder on a machine that has no games."""
    monkeypatch.setenv("COEVO_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "alfworld"


@pytest.fixture
def bare(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same on a machine that has no engine either."""

    def missing(name: str) -> NoReturn:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    return home


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: list[str], **_: object) -> NoReturn:
        pytest.fail(f"ran {command}")

    monkeypatch.setattr(subprocess, "run", refuse)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.usefixtures("no_pip")
def test_installing_without_a_source_uses_the_built_in_scenes(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert setup.install(None) == home / "data"
    assert "using the built-in scenes" in caplog.text
    installation = setup.installation()
    assert installation.ready
    assert (installation.engine, installation.data) == (
        "TextWorld 1.7.0 with our caches",
        "built-in scenes",
    )
    assert not home.exists()


@pytest.mark.usefixtures("no_pip")
@pytest.mark.skipif(
    OFFICIAL_ALFWORLD is None or OFFICIAL_ALFWORLD.is_dir(),
    reason="there is no alfworld_games.jsonl.xz on this machine (COEVO_TEST_ALFWORLD_DATA)",
)
def test_official_games_are_installed_once_and_an_incomplete_source_is_refused(
    home: Path, tmp_path: Path
) -> None:
    assert OFFICIAL_ALFWORLD is not None
    assert setup.install(OFFICIAL_ALFWORLD) == home / "data"
    first = data.open_games()
    assert setup.installation().data == f"4,027 official games ({home / 'data'})"
    assert setup.install(None) == home / "data"
    assert data.open_games() is first

    with lzma.open(OFFICIAL_ALFWORLD) as lines:
        few = b"".join(lines.readlines(2_000_000))
    (tmp_path / "short").write_bytes(lzma.compress(few, preset=0))
    with pytest.raises(DataError, match=r"short must contain 3553 train games, but contains \d+"):
        setup.install(tmp_path / "short")
    assert data.open_games() is first
    assert names(home) == [".lock", "data"]

    setup.install(OFFICIAL_ALFWORLD)
    assert data.open_games().digest == first.digest
    assert names(home / "data") == [data.STORE]


def test_a_data_folder_without_games_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COEVO_ALFWORLD_DATA", str(tmp_path))
    installation = setup.installation()
    assert not installation.ready
    assert f"No official ALFWorld games were found in {tmp_path}" in installation.data


@pytest.mark.usefixtures("bare", "no_pip")
def test_a_missing_compiler_tool_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "cmake" else f"/bin/{tool}")
    installation = setup.installation()
    assert not installation.ready
    assert installation.engine == (
        "alfworld 0.4.2 is not installed. Compiling it requires cmake. Install that first, "
        "then run `coevo install alfworld` (a few minutes)."
    )
    with pytest.raises(EnvBackendError, match=r"requires cmake\. Install that first"):
        setup.install(None)


@pytest.mark.usefixtures("home")
def test_an_engine_of_another_version_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {"alfworld": "0.4.2", "textworld": "1.6.0"}.get)
    installation = setup.installation()
    assert not installation.ready
    assert installation.engine.startswith("textworld 1.7.0 is required, but 1.6.0 is installed. ")


@pytest.mark.usefixtures("home")
def test_an_engine_that_cannot_be_imported_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textworld.envs.pddl", None)
    assert setup.installation().engine.startswith("TextWorld cannot be imported (import of textw")


def test_the_engine_is_installed_only_once(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def install(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        monkeypatch.setattr(metadata, "version", setup.VERSIONS.__getitem__)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(shutil, "which", lambda tool: f"/bin/{tool}")
    monkeypatch.setattr(subprocess, "run", install)
    for _ in range(2):
        assert setup.install(None) == bare / "data"
    locked, rest = ran
    assert locked[-4:] == ["--no-deps", "--require-hashes", "--requirement", str(setup.LOCK)]
    assert rest[-2:] == ["alfworld==0.4.2", "textworld==1.7.0"]
    assert sys.executable in locked
    assert sys.executable in rest
    assert setup.installation().ready


@pytest.mark.parametrize("uv", [None, "/somewhere/uv"])
@pytest.mark.usefixtures("bare")
def test_packages_are_installed_with_uv_if_pip_is_missing(
    uv: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(command: list[str], **_: object) -> NoReturn:
        raise EnvBackendError(" ".join(command))

    monkeypatch.setattr(provision, "find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda tool: uv if tool == "uv" else f"/bin/{tool}")
    monkeypatch.setattr(subprocess, "run", record)
    says = f"^{uv} pip install --python {sys.executable} " if uv else "has no pip, and uv is not on"
    with pytest.raises(EnvBackendError, match=says):
        setup.install(None)


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (subprocess.CompletedProcess("pip", 1, "", "\n".join("abcdefg")), "exit code 1.*:\nc\nd\n"),
        (subprocess.CompletedProcess("pip", 0, "", ""), "pip finished, but alfworld 0.4.2"),
        (subprocess.TimeoutExpired("pip", 1800), "pip did not finish within 1800 s"),
    ],
)
@pytest.mark.usefixtures("bare")
def test_a_failing_pip_is_reported(
    outcome: subprocess.CompletedProcess[str] | Exception,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(shutil, "which", lambda tool: f"/bin/{tool}")
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(EnvBackendError, match=f"(?s){message}"):
        setup.install(None)


def test_the_extra_and_the_constraints_pin_the_required_versions() -> None:
    project = Path(__file__).parents[2]
    extra = (project / "pyproject.toml").read_text()
    pins = (project / "constraints.txt").read_text().splitlines()
    for name, version in setup.VERSIONS.items():
        assert json.dumps(f"{name}=={version}") in extra
        assert f"{name}=={version}" in pins
