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


def test_what_is_copied_is_there() -> None:
    (first, *others) = re.findall(r"^COPY --chown=coevo:coevo (.+)$", TEXT, re.MULTILINE)
    assert set(others) == {". ."}
    assert all((ROOT / name).is_file() for name in first.split()[:-1])


def test_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"-e '\.\[(.+)\]'", TEXT)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert set(extras.split(",")) >= {"train", "dev"}


def test_it_has_what_ci_installs() -> None:
    needed = installed((ROOT / ".ci" / "run").read_text())
    assert needed
    assert needed <= installed(TEXT)


def test_it_runs_the_two_commands_as_somebody_who_is_not_root() -> None:
    assert re.findall(r'^CMD \["make", "(\w+)"\]$', TEXT, re.MULTILINE) == ["demo", "test"]
    assert re.findall(r"^USER (\w+)$", TEXT, re.MULTILINE)[-1] == "coevo"


def test_what_git_ignores_is_not_sent_to_docker() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in (ROOT / ".gitignore").read_text().splitlines():
        assert {line.strip("/"), f"**/{line.strip('/')}"} & set(ignored), line
