"""What `make` says and does on machines unlike this one, with fakes in place of pip and uv."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FAKE_PYTHON = """#!/bin/sh
# Stands in for the venv's interpreter: logs each call, and resolves PyTorch with {resolved}.
echo "$@" >> {log}
case "$*" in *--report*) echo '{{"install": [{{"metadata": {{"name": "{resolved}"}}}}]}}';; esac
"""
FAKE_UV = "#!/bin/sh\nexit {code}\n"
ANNOUNCED = "about 2.7 GB to download"

Make = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    return tmp_path / "venv"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH with the few programs that the Makefile's own lines need."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("sh", "grep", "sed", "touch", "make", "echo"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    return folder


@pytest.fixture
def make(venv: Path, tools: Path) -> Make:
    def run(
        stamp: str, *, uv: int = 0, resolved: str = "torch"
    ) -> subprocess.CompletedProcess[str]:
        log = venv / "calls.txt"
        log.touch()
        for name, text in {
            "python": FAKE_PYTHON.format(log=log, resolved=resolved),
            "uv": FAKE_UV.format(code=uv),
            "coevo": FAKE_UV.format(code=0),
        }.items():
            (venv / "bin" / name).write_text(text)
            (venv / "bin" / name).chmod(0o755)
        return subprocess.run(
            ["/usr/bin/make", f"VENV={venv}", stamp if stamp == "demo" else f"{venv}/{stamp}"],
            cwd=ROOT,
            env={"PATH": str(tools), "HOME": os.environ.get("HOME", "/")},
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        )

    return run


def calls(venv: Path) -> list[str]:
    return (venv / "calls.txt").read_text().splitlines()


def installs_torch(venv: Path) -> bool:
    return any("torch==" in call and "--dry-run" not in call for call in calls(venv))


def test_the_demo_numbers_its_parts_and_pip_prints_only_errors(make: Make, venv: Path) -> None:
    done = make("demo")
    first, last = (line for line in done.stdout.splitlines() if line.startswith("["))
    assert first.startswith("[1/2] Installing")
    assert last.startswith("[2/2] Training")
    installs = [call for call in calls(venv) if call.startswith("-m pip")]
    assert installs
    assert all(call.count("--quiet") == 2 for call in installs)


def test_the_cpu_build_of_pytorch_is_installed_where_it_is_available(
    make: Make, venv: Path
) -> None:
    done = make("train.stamp")
    assert not installs_torch(venv)
    assert ANNOUNCED not in done.stdout


def test_a_cuda_build_of_pytorch_is_announced_before_its_download(make: Make, venv: Path) -> None:
    done = make("train.stamp", uv=1, resolved="nvidia-cublas")
    assert ANNOUNCED in done.stdout
    assert installs_torch(venv)


def test_a_cpu_build_of_pytorch_that_only_pip_finds_is_not_announced(
    make: Make, venv: Path
) -> None:
    done = make("train.stamp", uv=1)
    assert installs_torch(venv)
    assert ANNOUNCED not in done.stdout


def test_everything_but_alfworld_is_installed_without_a_compiler(make: Make, venv: Path) -> None:
    done = make("dev.stamp")
    assert "There is no cmake here, so the tests of ALFWorld are skipped" in done.stdout
    assert calls(venv)[-1].endswith("-e .[train,dev,serve]")


def test_alfworld_is_installed_with_compilers(make: Make, venv: Path, tools: Path) -> None:
    for name in ("cmake", "g++"):
        (tools / name).symlink_to("/usr/bin/true")
    done = make("dev.stamp")
    assert "skipped" not in done.stdout
    assert calls(venv)[-1].endswith("-e .[train,dev,serve,alfworld]")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo False", "coevo_gym needs Python 3.11 or newer; {python} is older. Try: make"),
        ("exit 127", "{python} cannot be run. Name a Python from 3.11 on: make"),
        (None, "{python} cannot be run. Name a Python from 3.11 on: make"),
    ],
    ids=["older", "broken", "missing"],
)
@pytest.mark.parametrize("goal", ["lint", "gpu-check"])
def test_an_unusable_python_is_an_error_that_names_it(
    tmp_path: Path, script: str | None, message: str, goal: str
) -> None:
    python = tmp_path / "my python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    done = subprocess.run(
        ["/usr/bin/make", f"VENV={tmp_path / 'venv'}", f"PYTHON={python}", goal],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 2
    assert message.format(python=python) in done.stdout
    assert f"PYTHON=python3.12 {goal}\n" in done.stdout
