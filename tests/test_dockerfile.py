"""The Dockerfile names what there is: files, extras, system packages and commands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text()


def installed(text: str) -> set[str]:
    """System packages that a script installs."""
    matches = re.findall(r"apt-get install ((?:[^&|\n]|\\\n)+)", text.replace("\\\n", " "))
    return {word for words in matches for word in words.split() if not word.startswith("-")}


def test_the_files_to_copy_exist() -> None:
    (first, *others) = re.findall(r"^COPY --chown=coevo:coevo (.+)$", TEXT, re.MULTILINE)
    assert set(others) == {". ."}
    assert all((ROOT / name).is_file() for name in first.split()[:-1])


def test_the_installed_extras_exist_in_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"-e '\.\[(.+)\]'", TEXT)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert set(extras.split(",")) >= {"train", "dev"}


def test_the_image_installs_every_system_package_of_ci() -> None:
    needed = installed((ROOT / ".ci" / "run").read_text())
    assert needed
    assert needed <= installed(TEXT)


def test_the_image_runs_make_demo_and_make_test_as_a_non_root_user() -> None:
    assert re.findall(r'^CMD \["make", "(\w+)"\]$', TEXT, re.MULTILINE) == ["demo", "test"]
    assert re.findall(r"^USER (\w+)$", TEXT, re.MULTILINE)[-1] == "coevo"


def test_files_that_git_ignores_are_not_sent_to_docker() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in (ROOT / ".gitignore").read_text().splitlines():
        assert {line.strip("/"), f"**/{line.strip('/')}"} & set(ignored), line
