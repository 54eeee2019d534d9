"""`coevo install TRAINER`: environments with pinned versions, made once; what the doctor says."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from coevo_gym.core.errors import EnvBackendError
from coevo_gym.trainers.adapters import trainer as trainers
from coevo_gym.trainers.adapters.trainer import (
    TRAINERS,
    Trainer,
    find_trainer,
    folder_of,
    import_trainer,
    install_trainer,
    python_of,
)

ROOT = Path(__file__).parents[2]
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "little-trainer"
version = "{version}"
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of two versions of a trainer."""
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "2.0"):
        source = tmp_path_factory.mktemp("source")
        (source / "pyproject.toml").write_text(PROJECT.format(version=version))
        (source / "little_trainer").mkdir()
        (source / "little_trainer" / "__init__.py").write_text(f"VERSION = '{version}'\n")
        build = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
        subprocess.run([sys.executable, *build], check=True, capture_output=True, timeout=600)
    return folder


@pytest.fixture
def little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """A trainer that takes one module of ours, in a home where nothing is installed."""
    monkeypatch.setenv("COEVO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(trainers, "_PINS", tmp_path)
    (tmp_path / "little.txt").write_text("little-trainer==1.0\n")
    return Trainer(
        "little", "Little", ("little-trainer",), modules={"coevo_waiting": "core/waiting.py"}
    )


def output_of(trainer: Trainer, code: str) -> str:
    done = subprocess.run(
        [python_of(trainer), "-I", "-c", code],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return (done.stdout + done.stderr).strip()


def test_an_environment_is_installed_once_with_pinned_versions(
    little: Trainer, wheels: Path
) -> None:
    installation = find_trainer(little)
    assert (installation.here, installation.apart, installation.python, installation.ready) == (
        {},
        {},
        "",
        False,
    )
    assert str(installation) == "not installed: run `coevo install little`"
    assert install_trainer(little, wheels) == folder_of(little)
    installation = find_trainer(little)
    assert installation.ready
    assert installation.apart == {"little-trainer": "1.0"}  # pinned: 2.0 is there, too
    assert output_of(little, "import little_trainer as l; print(l.VERSION)") == "1.0"
    assert output_of(little, "import coevo_waiting as w; print(w.__name__)") == "coevo_waiting"
    assert "No module named 'coevo_gym'" in output_of(little, "import coevo_gym")
    before = python_of(little).lstat().st_mtime_ns
    install_trainer(little, wheels)
    assert python_of(little).lstat().st_mtime_ns == before


def test_outdated_modules_and_packages_are_reinstalled(little: Trainer, wheels: Path) -> None:
    install_trainer(little, wheels)
    (copy,) = folder_of(little).glob("lib/python*/site-packages/coevo_waiting.py")
    copy.write_text("# of another version\n")
    assert not find_trainer(little).ready
    assert "its copy of coevo_gym modules is outdated" in str(find_trainer(little))
    install_trainer(little, wheels)
    assert find_trainer(little).ready
    little.pins.write_text("little-trainer==2.0\n")
    assert "its packages do not match this version" in str(find_trainer(little))
    install_trainer(little, wheels)
    assert find_trainer(little).apart == {"little-trainer": "2.0"}


def test_a_failed_installation_is_reported_as_incomplete(little: Trainer, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    with pytest.raises(EnvBackendError, match=r"must contain the wheels of all .*little\.txt"):
        install_trainer(little, nothing)
    installation = find_trainer(little)
    assert not installation.ready
    assert "is incomplete: run `coevo install little` again" in str(installation)


def test_a_trainer_that_shares_our_environment_is_installed_from_a_checkout_only(
    little: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coevo_gym.trainers.adapters.trainer._PACKAGE", tmp_path / "coevo_gym")
    with pytest.raises(ValueError, match=r"is not one. In a checkout, run"):
        install_trainer(replace(little, extra="sb3"))
    assert not folder_of(little).exists()


def test_an_environment_that_uses_another_checkout_is_reported_and_reinstalled(
    little: Trainer, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_trainer(little, wheels)
    shared = replace(little, extra="sb3")
    (site,) = folder_of(little).glob("lib/python*/site-packages")
    ours = site / "coevo_gym-0.1.dist-info"
    ours.mkdir()
    (ours / "METADATA").write_text("Metadata-Version: 2.1\nName: coevo-gym\nVersion: 0.1\n")
    origin = ours / "direct_url.json"
    origin.write_text(json.dumps({"url": ROOT.as_uri(), "dir_info": {"editable": True}}))
    assert find_trainer(shared).ready
    origin.write_text(json.dumps({"url": "file:///another/check%20out"}))
    assert "it uses the coevo_gym of /another/check out: run" in str(find_trainer(shared))
    assert not find_trainer(shared).ready
    asked = []
    monkeypatch.setattr(
        "coevo_gym.trainers.adapters.trainer.pip_install", lambda wanted, **_: asked.append(wanted)
    )
    install_trainer(shared)
    assert asked == [["--no-deps", "--editable", f"{ROOT}[sb3]"]]


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=lambda trainer: trainer.name)
def test_every_trainer_has_pins_of_its_packages(trainer: Trainer) -> None:
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in trainer.pins.open()}
    assert set(trainer.packages) <= pinned
    assert all("==" in line and "+" not in line for line in trainer.pins.read_text().split())
    for file in trainer.modules.values():
        assert (ROOT / "coevo_gym" / file).is_file()
    page = (ROOT / "docs" / "trainers.md").read_text()
    assert trainer.title in page
    assert f"coevo install {trainer.name}" in page


def test_a_missing_trainer_raises_with_the_install_command() -> None:
    with pytest.raises(ImportError, match=r"\[sb3\]'?`, or run `coevo install sb3` and use"):
        import_trainer("no_such_module", "sb3")


@pytest.mark.slow
def test_doctor_and_install_know_the_trainers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COEVO_HOME", str(tmp_path))

    def coevo(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "coevo_gym.cli", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    states = json.loads(coevo("doctor", "--json").stdout)["trainers"]
    assert set(states) == set(TRAINERS)
    assert states["rllib"]["apart"] == {}
    assert "rllib" in coevo("doctor").stdout
    assert "RLlib has no data" in coevo("install", "rllib", "--data").stderr
    missing = coevo("install", "rlib")
    assert missing.returncode == 2
    assert "There is no benchmark or trainer 'rlib'. Did you mean 'rllib'?" in missing.stderr
