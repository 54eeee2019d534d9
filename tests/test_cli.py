"""The ``coevo`` command, as a user runs it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.main import get_command

from coevo_gym import tasks
from coevo_gym.cli import output
from coevo_gym.cli.app import COMMANDS, app
from coevo_gym.core.arithmetic import processor_name
from coevo_gym.core.benchmark import benchmark_specs
from coevo_gym.testing import make_env
from tests.processes import run
from tests.quick import slow_for


def coevo(
    *arguments: str, stdin: str = "", code: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    done = run(
        ["-m", "coevo_gym.cli", *arguments],
        input=stdin,
        env={**os.environ, "COLUMNS": "200", **environment},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def without_bfcl(folder: Path) -> dict[str, str]:
    """An environment with an empty home, where a bfcl_eval of this Python is of a wrong version."""
    info = folder / "site" / "bfcl_eval-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bfcl_eval\nVersion: 0\n")
    return {"COEVO_HOME": str(folder / "home"), "PYTHONPATH": str(info.parent)}


def test_python_m_coevo_gym_runs_the_command() -> None:
    done = run(["-m", "coevo_gym", "--help"], env={**os.environ, "COLUMNS": "200"})
    assert (done.returncode, done.stdout) == (0, coevo("--help").stdout)


def test_help_lists_the_commands_under_headings() -> None:
    text = coevo("--help").stdout
    places = [text.index(f" {heading} ─") for heading in COMMANDS]
    assert places == sorted(places)
    for start, end, verbs in zip(places, [*places[1:], None], COMMANDS.values(), strict=True):
        assert all(f"\n│ {verb} " in text[start:end] for verb in verbs)


def help_texts(command: Any, path: str = "coevo") -> Iterator[tuple[str, str]]:
    """Each help text of a command and the commands below it, with its place."""
    yield path, command.help or ""
    for parameter in command.params:
        yield f"{path} {parameter.name}", getattr(parameter, "help", None) or ""
    for name, inner in getattr(command, "commands", {}).items():
        yield from help_texts(inner, f"{path} {name}")


def test_no_help_text_loses_words_in_brackets() -> None:
    """The help is markup, in which an unknown word in brackets is a style and is not printed."""
    for place, text in help_texts(get_command(app)):
        assert Text.from_markup(text).plain == text, place


def test_a_default_in_words_is_shown_like_any_other() -> None:
    text = coevo("export", "--help", COLUMNS="200").stdout
    assert "[default: train]" in text
    assert "[default: messages]" in text


def test_envs_lists_ids_and_task_counts() -> None:
    row = json.loads(coevo("envs", "--json").stdout)[0]
    assert row["id"] == "CoEvolve-WebShop-v0"
    assert row["train"] > row["val"] >= 200
    text = coevo("envs").stdout
    assert "CoEvolve-WebShop-v0" in text
    assert 'To create an env: gym.make("coevo_gym:ID")' in text


def test_envs_lists_a_benchmark_that_is_not_installed(tmp_path: Path) -> None:
    rows = json.loads(coevo("envs", "--json", **without_bfcl(tmp_path)).stdout)
    row = next(row for row in rows if row["benchmark"] == "bfcl")
    assert row["id"] == "CoEvolve-BFCL-v0"
    assert row["train"] == row["val"] == row["test"] == -1
    assert "Run `coevo install bfcl`" in row["missing"]
    for key in rows[0]:
        assert len({type(row[key]) for row in rows}) == 1, key
    text = coevo("envs", **without_bfcl(tmp_path / "again")).stdout
    assert "bfcl: BFCL needs the official package" in text


def test_doctor_reports_every_benchmark_as_ready(appworld_root: Path) -> None:
    rows = json.loads(coevo("doctor", "--json").stdout)
    rows.pop("trainers")  # none of them need be there
    machine = rows.pop("machine")
    assert machine["Python"].startswith(platform.python_version())
    assert machine["processor"] == processor_name()
    assert machine["arithmetic"].startswith("native with ")
    assert rows["webshop"]["data"].startswith("builtin: ")
    assert rows["bfcl"]["data"].startswith("800 tasks (")
    assert rows["appworld"]["data"] == "built-in world"
    assert all(row["ready"] for row in rows.values())
    text = coevo("doctor").stdout
    ids = {spec.name: spec.env_id for spec in benchmark_specs()}
    for name in rows:
        assert f'use        gym.make("coevo_gym:{ids[name]}")' in text


def test_doctor_without_bfcl_exits_with_3_and_says_how_to_install_it(tmp_path: Path) -> None:
    rows = json.loads(coevo("doctor", "--json", code=3, **without_bfcl(tmp_path)).stdout)
    assert rows["webshop"]["ready"]
    assert not rows["bfcl"]["ready"]
    assert "Run `coevo install bfcl`" in rows["bfcl"]["data"]


def test_doctor_with_a_missing_data_folder_exits_with_3(tmp_path: Path) -> None:
    done = coevo("doctor", code=3, COEVO_WEBSHOP_DATA=str(tmp_path / "nowhere"))
    assert "no" in done.stdout


def test_install_without_files_names_the_from_option() -> None:
    assert "coevo install webshop --from DIR" in coevo("install", "webshop", code=2).stderr


def test_install_data_is_refused_without_a_download_or_together_with_from(tmp_path: Path) -> None:
    done = coevo("install", "webshop", "--data", code=2)
    assert "Data for webshop cannot be downloaded. Pass the data with --from." in done.stderr
    done = coevo("install", "appworld", "--data", "--from", str(tmp_path), code=2)
    assert "Pass only one" in done.stderr


def test_install_validates_files_before_it_copies_them(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    assert "items_shuffle" in coevo("install", "webshop", "--from", str(bad), code=3).stderr
    (bad / "items_shuffle_1000.json").write_text("[]]")
    (bad / "items_ins_v2_1000.json").write_text("{}")
    done = coevo("install", "webshop", "--from", str(bad), code=1, COEVO_HOME=str(tmp_path / "h"))
    assert "not valid JSON" in done.stderr
    assert not (tmp_path / "h" / "webshop" / "data").exists()


def test_install_copies_official_files_and_can_be_repeated(
    official_data: Path, tmp_path: Path
) -> None:
    home = {**without_bfcl(tmp_path), "COEVO_WEBSHOP_DATA": ""}
    for _ in range(2):
        coevo("install", "webshop", "--from", str(official_data), **home)
    row = json.loads(coevo("doctor", "--json", code=3, **home).stdout)["webshop"]
    assert row["data"].startswith("1k: 1000 products")


def test_install_bfcl_again_does_nothing() -> None:
    assert "bfcl is installed in" in coevo("install", "bfcl").stdout


def test_install_bfcl_without_its_wheels_is_an_error(tmp_path: Path) -> None:
    environment = without_bfcl(tmp_path)
    done = coevo("install", "bfcl", "--from", str(tmp_path), code=1, **environment)
    assert f"{tmp_path} must contain the wheels of bfcl-eval==" in done.stderr
    assert "`coevo install bfcl`" in coevo("play", "bfcl", code=3, **environment).stderr


def test_a_typo_gets_a_suggestion() -> None:
    assert "Did you mean 'play'?" in coevo("plau", code=2).stderr
    assert "Choose one of: webshop" in coevo("play", "webshp", code=2).stderr


def test_play_accepts_actions_by_number_and_by_text() -> None:
    task = tasks("webshop", "train")[0]
    lines = "\n".join(("1", *task.solution[1:])) + "\n"
    done = coevo("play", "webshop", "--task", task.name, stdin=lines)
    assert "solved" in done.stdout
    assert "score 1.00" in done.stdout


def test_play_explains_an_invalid_action_and_exits_at_the_end_of_input() -> None:
    done = coevo("play", "webshop", "--seed", "1", stdin="buy it\n")
    assert "is not of the form search[...] or click[...]" in done.stdout


@pytest.mark.parametrize("benchmark", ["webshop", "bfcl", "alfworld", "appworld"])
def test_play_shows_the_instruction_and_the_whole_observation(
    benchmark: str, request: pytest.FixtureRequest
) -> None:
    if benchmark == "appworld":
        request.getfixturevalue("appworld_root")
    env = make_env(benchmark)
    observation, _ = env.reset(seed=1)
    asked = env.instruction
    env.close()
    text = coevo("play", benchmark, "--seed", "1", COLUMNS="3000").stdout
    assert asked in text
    for line in observation.split(" [SEP] ") if asked in observation else ():
        assert all(part in text for part in line.splitlines() if asked not in part)


def test_play_accepts_an_action_of_several_lines(appworld_root: Path) -> None:
    block = ("```python", "greeting = 'hel' + 'lo'", "print(greeting)", "```")
    lines = "\n".join((*block, "print(greeting * 2)", "```no code", "```", "q")) + "\n"
    done = coevo("play", "appworld", "--seed", "1", stdin=lines)
    assert "> hello\n" in done.stdout
    assert "hellohello" in done.stdout
    assert "this did not cost a step" in done.stdout
    assert done.stdout.count("step 3 of") == 2


def test_play_charges_no_step_for_an_invalid_choice() -> None:
    task = tasks("alfworld", "train")[0]
    first, *rest = task.solution
    typos = ("", "999", "0", "go to the moon")
    lines = "\n".join((first, *typos, *rest)) + "\n"
    done = coevo("play", "alfworld", "--task", task.name, stdin=lines)
    assert "solved" in done.stdout
    assert done.stdout.count("step 1 of 50") == 1
    assert done.stdout.count("step 2 of 50") == 1 + len(typos)
    assert f"step {len(task.solution)} of 50" in done.stdout
    assert f"step {len(task.solution) + 1} of 50" not in done.stdout


def test_listing_commands_do_not_create_the_built_in_world(
    appworld_root: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    (home / "appworld").mkdir(parents=True)
    (home / "appworld" / "engine").symlink_to(appworld_root.parent / "engine")
    row = json.loads(coevo("envs", "--json", COEVO_HOME=str(home)).stdout)[3]
    assert (row["benchmark"], row["train"]) == ("appworld", -1)
    assert "Run `coevo install appworld`" in row["missing"]
    for arguments in (["tasks", "appworld"], ["tasks", "show", "appworld/builtin/8d42c80_1"]):
        done = coevo(*arguments, code=3, COEVO_HOME=str(home))
        assert "built-in world has not been created yet" in done.stderr
    assert "not created yet" in coevo("doctor", code=3, COEVO_HOME=str(home)).stdout
    coevo("train", "coevolve_appworld_qwen3_4b", "--dry-run", COEVO_HOME=str(home))
    assert [path.name for path in home.rglob("*") if path.is_dir()] == ["appworld", "engine"]


@pytest.mark.parametrize("columns", slow_for(["60", "80"], "60"))
def test_paths_keys_and_ids_are_not_wrapped_in_a_narrow_terminal(
    columns: str, tmp_path: Path
) -> None:
    home = tmp_path / ("long" * 20)
    home.mkdir()
    data = tmp_path / ("data" * 20)
    narrow = {"COLUMNS": columns, "COEVO_HOME": str(home), "COEVO_ALFWORLD_DATA": str(data)}
    assert str(data) in coevo("doctor", code=3, **narrow).stdout
    keys = [
        row["key"] for row in json.loads(coevo("config", "show", "quickstart", "--json").stdout)
    ]
    words = coevo("config", "show", "quickstart", **narrow).stdout.split()
    assert not set(keys) - set(words)
    assert "CoEvolve-ALFWorld-v0" in coevo("envs", **narrow).stdout


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_version_and_help_print_text(flag: str) -> None:
    assert coevo(flag).stdout


@pytest.mark.parametrize(("width", "parts"), [(200, 1), (60, 2), (30, 4)])
def test_numbers_are_not_wrapped_in_a_narrow_terminal(
    width: int, parts: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns that do not fit move to a table below, which repeats the names of the rows."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(output, "console", Console(width=width))
    table = Table("policy", "success on val", "95 % interval", "env steps", "mixed groups")
    table.add_row("[bold]static[/]", "75.2%", "70.8% – 79.2%", "80,100", "31.0%")
    output.print_table_unwrapped(table)
    text = capsys.readouterr().out
    assert text.count("static") == text.count("policy") == parts
    for cell in ("success on val", "70.8% – 79.2%", "80,100", "mixed groups", "31.0%"):
        assert cell in text


def test_each_part_of_a_wide_table_repeats_all_key_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(output, "console", Console(width=80))
    table = Table("row", "seeds", "against", "difference", "95 % interval", "wins", "p")
    for against in ("static", "shuffled"):
        table.add_row("a row: coevolve", "10", against, "+1.6", "[-0.9, +4.1]", "7 of 10", "0.188")
    output.print_table_unwrapped(table, keys=("row", "against"))
    text = capsys.readouterr().out
    parts = text.count("coevolve") // 2
    assert parts == 2
    assert text.count("static") == text.count("shuffled") == text.count("against") == parts
    assert text.count("0.188") == text.count("+1.6") == 2


@pytest.mark.parametrize(
    "command",
    slow_for(
        [
            "train --list",
            "experiment --list",
            "config show quickstart",
            "train coevolve_bfcl_qwen3_4b --dry-run --card h100",
            "eval -h",
            "model list",
        ],
        "eval -h",
        "model list",
    ),
)
def test_output_fits_into_80_columns(command: str) -> None:
    lines = coevo(*command.split(), COLUMNS="80").stdout.splitlines()
    assert len(lines) > 3
    assert not [line for line in lines if cell_len(line) > 80]


def test_help_text_wraps_at_the_terminal_width() -> None:
    prose = coevo("play", "--help", COLUMNS="60").stdout.partition("For example")[0].splitlines()
    lines = [line.strip() for line in prose]
    inner = [a for a, b in pairwise(lines) if a and b]
    assert len(inner) > 5
    assert min(map(len, inner)) > 40
