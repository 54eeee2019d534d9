"""The ``coevo`` command, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def coevo(
    *arguments: str, stdin: str = "", code: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "coevo_gym.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", **environment},
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_help_lists_the_verbs() -> None:
    text = coevo("--help").stdout
    assert all(verb in text for verb in ("envs", "doctor", "install", "play"))


def test_envs() -> None:
    row = json.loads(coevo("envs", "--json").stdout)[0]
    assert row["id"] == "CoEvolve-WebShop-v0"
    assert row["train"] > row["val"] >= 200
    assert "CoEvolve-WebShop-v0" in coevo("envs").stdout


def test_doctor_on_a_bare_machine() -> None:
    row = json.loads(coevo("doctor", "--json").stdout)["webshop"]
    assert row["ready"]
    assert row["data"].startswith("builtin: ")


def test_doctor_with_a_wrong_folder(tmp_path: Path) -> None:
    done = coevo("doctor", code=3, COEVO_WEBSHOP_DATA=str(tmp_path / "nowhere"))
    assert "no" in done.stdout


def test_install_without_files_says_what_to_do() -> None:
    assert "coevo install webshop --from DIR" in coevo("install", "webshop", code=2).stderr


def test_install_checks_before_it_copies(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    assert "items_shuffle" in coevo("install", "webshop", "--from", str(bad), code=3).stderr
    (bad / "items_shuffle_1000.json").write_text("[]]")
    (bad / "items_ins_v2_1000.json").write_text("{}")
    done = coevo("install", "webshop", "--from", str(bad), code=1, COEVO_HOME=str(tmp_path / "h"))
    assert "not valid JSON" in done.stderr
    assert not (tmp_path / "h" / "webshop" / "data").exists()


def test_install_official_files(official_data: Path, tmp_path: Path) -> None:
    home = {"COEVO_HOME": str(tmp_path / "home"), "COEVO_WEBSHOP_DATA": ""}
    for _ in range(2):
        coevo("install", "webshop", "--from", str(official_data), **home)
    row = json.loads(coevo("doctor", "--json", **home).stdout)["webshop"]
    assert row["data"].startswith("1k: 1000 products")


def test_a_typo_gets_a_suggestion() -> None:
    assert "Did you mean 'play'?" in coevo("plau", code=2).stderr
    assert "Choose one of: webshop" in coevo("play", "webshp", code=2).stderr


def test_play_by_number_and_by_text() -> None:
    from coevo_gym import tasks

    task = tasks("webshop", "train")[0]
    lines = "\n".join(("1", *task.solution[1:])) + "\n"
    done = coevo("play", "webshop", "--task", task.name, stdin=lines)
    assert "solved" in done.stdout
    assert "score 1.00" in done.stdout


def test_play_explains_an_impossible_action_and_ends_with_the_input() -> None:
    done = coevo("play", "webshop", "--seed", "1", stdin="buy it\n")
    assert "is not of the form search[...] or click[...]" in done.stdout


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_quick_flags(flag: str) -> None:
    assert coevo(flag).stdout
