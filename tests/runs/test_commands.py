"""The verbs about runs, as a user runs them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from coevo_gym.cli import output
from coevo_gym.cli.tasks.group import print_tasks
from coevo_gym.core.evolution import Draft
from coevo_gym.runs.config import preset_names
from coevo_gym.store.folder import read_json
from tests.runs.conftest import ROOT, TOY, Coevo
from tests.toy import ToyBenchmark


def test_training_into_an_existing_run_is_refused(coevo: Coevo) -> None:
    text = coevo("train", TOY, code=2)
    assert "runs/toy-run already contains a run" in text
    assert "--overwrite" in text


def test_command_line_mistakes_exit_with_a_usage_error(coevo: Coevo) -> None:
    assert "Did you mean loop.max_steps?" in coevo("train", TOY, "--set", "loop.max_step=1", code=2)
    assert "There is no preset" in coevo("train", "quickstrt", code=2)
    assert "Runs here: toy-run" in coevo("resume", "toy-rn", code=2)
    assert "has no policy 'x'" in coevo("eval", "toy-run", "--policy", "x", code=2)
    for verb in (
        "train quickstart --dry-run",
        "eval toy --policy random",
        "experiment controls",
        "play toy",
    ):
        text = coevo(*verb.split(), "--name", "", code=2)
        assert "takes letters, digits and . _ -, and begins with a letter" in text
    text = coevo("train", "quickstart", "--set", "arms=a/b", code=2)
    assert "an arm's name may contain letters, digits, _ and -" in text
    splits = "'x' is not one of 'train', 'val', 'test'"
    assert f"--split': {splits}, 'held_out'. Try" in coevo("eval", "toy", "--split", "x", code=2)
    assert f"--split': {splits}. Try" in coevo("tasks", "toy", "--split", "x", code=2)
    assert "`coevo train --list` lists the presets" in coevo("train", code=2)


@pytest.mark.parametrize(
    "settings", ["policy.kind=openai", "policy.kind=transformers,policy.model.path=/nowhere"]
)
def test_a_policy_that_cannot_be_created_leaves_no_run_folder(
    coevo: Coevo, finished: Path, settings: str
) -> None:
    sets = [f"--set={setting}" for setting in settings.split(",")]
    coevo("train", TOY, "--name", "never", *sets, code=2)
    assert not finished.with_name("never").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("eval toy --env nosuch=1", "ToyEnv has no argument 'nosuch'. It accepts: subset, tasks"),
        ("eval toy --env max_step=1", "Did you mean 'max_steps'?"),
        ("eval toy --env max_steps=abc", "--env max_steps=abc: Input should be a valid integer"),
        ("eval toy --env max_steps=true", "--env max_steps=true: Input should be a valid integer"),
        ("eval toy --env max_steps=2.5", "--env max_steps=2.5: Input should be a valid integer"),
        ("eval toy --env tasks=5", "Cannot read tasks from 5"),
        ("eval toy --env split=train", "Pass --split instead"),
        ("eval toy --env self=1", "has no argument 'self'"),
        ("eval toy --env =", "has no argument ''"),
        ("eval toy --set benchmark=webshop", "Run `coevo eval webshop` instead"),
        ("eval toy --set seed=-1", "seed = '-1' (from command line)"),
        ("eval toy --set nosuch", "--set must have the form section.key=value"),
        ("train quickstart --set loop.nosuch=3", "loop has the settings max_steps, max_env"),
        ("train quickstart --set learner.max_steps=3", "benchmark.max_steps or explorer.max_s"),
        ("train quickstart --set learner.zzzzzz=3", "`coevo config show quickstart` lists all"),
        ("eval toy --set policy.endpoint.base_url=host:1/v1", "such as http://localhost:8000/v1"),
        ("eval ty", "Did you mean 'toy'?"),
        ("eval toy-rn", "Did you mean 'toy-run'?"),
        ("train toy.toml --name=", "name = ''"),
        ("train quickstart --set loop=3", "There is no setting 'loop'"),
        ("train quickstart --set method.native=true", "arm.NAME.set.method.native"),
        ("tasks ty", "Did you mean 'toy'?"),
        ("tasks shwo", "There is no benchmark or run named 'shwo'"),
        ("report .", "runs is not a run, but contains "),
        ("report runs/toy-run/checkpoints", "manifest.json, which records its settings, is missi"),
        ("play webshp", "Did you mean 'webshop'?"),
        ("play toy --seed=-1", "--seed"),
        ("play toy --task nosuch", "toy has no task 'nosuch'"),
        ("install toy", "toy needs no installation"),
        ("play toy --task=", "toy has no task ''"),
        ("install webshop --from /nowhere", "'/nowhere' does not exist. Try --help."),
        ("model fetch nosuch", "nosuch"),
        ("model fetch smollm2 --from /nowhere", "'/nowhere' does not exist"),
        ("report toy-run --output .", "Cannot write to ."),
        ("report toy-run --picture x.svg", "No such option: --picture"),
        ("config show nosuch", "There is no preset 'nosuch'"),
    ],
)
def test_every_command_line_mistake_prints_one_clear_error(
    coevo: Coevo, arguments: str, message: str
) -> None:
    command = [TOY if word == "toy.toml" else word for word in arguments.split()]
    command += ["--policy", "random"] if command[0] == "eval" else []
    text = coevo(*command, code=2)
    assert message in text
    assert "Traceback" not in text
    assert text.count("Input should be") <= 1


def test_a_run_folder_that_cannot_be_written_is_reported(
    coevo: Coevo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("in the way")
    assert "Cannot write runs/toy-run: Not a directory" in coevo("train", TOY, code=1)


def test_overwrite_leaves_a_folder_that_is_not_a_run_unchanged(
    coevo: Coevo, finished: Path
) -> None:
    other = finished.with_name("thesis")
    other.mkdir()
    (other / "thesis.tex").write_text("years")
    coevo("train", TOY, "--name", "thesis", "--overwrite", code=2)
    assert [item.name for item in other.iterdir()] == ["thesis.tex"]
    shutil.rmtree(other)


def test_a_run_whose_explorer_finds_no_tasks_fails_with_an_explanation(
    coevo: Coevo, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyBenchmark, "drafts", lambda *_: [])
    nothing = ("--name", "nothing", "--set", "warmup.n_tasks=0")
    text = coevo("train", TOY, *nothing, code=1)
    assert "did not find any initial tasks: 0 drafts" in text
    shutil.rmtree(finished.with_name("nothing"))


def test_a_run_whose_explorer_finds_few_tasks_prints_a_message(
    coevo: Coevo, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts, first = ToyBenchmark.drafts, list[Draft]()

    def one_idea(self: ToyBenchmark, *explored: Any) -> list[Draft]:
        first.extend([] if first else drafts(self, *explored)[:1])
        return list(first)

    monkeypatch.setattr(ToyBenchmark, "drafts", one_idea)
    few = ("--name", "few", "--set", "warmup.n_tasks=0", "--set", "loop.max_env_steps=1")
    text = coevo("train", TOY, *few)
    assert re.search(r"found 1 of \d+ initial tasks: \d+ drafts, rejected by: near_", text)
    shutil.rmtree(finished.with_name("few"))


def test_eval_reproduces_the_results_table_of_the_run(coevo: Coevo, finished: Path) -> None:
    table = {row["name"]: row for row in read_json(finished / "summary.json")["table"]}
    for name in ("random", "warm-up", "coevolve"):
        row = json.loads(coevo("eval", "toy-run", "--policy", name, "--json"))
        assert row["split"] == "val"
        practised = dict.fromkeys(  # an evaluation knows nothing of it
            ("mixed_groups", "explored", "rollout_tokens", "gradient_tokens")
        )
        assert row.items() >= (table[name] | practised).items()
    text = coevo("eval", "toy-run", "--policy", "scripted", "--overwrite")
    assert "scripted: 10/10" in text  # it says how far it is
    assert "100.0%" in text
    *_, row, end = [line for line in text.splitlines() if line[:1] in {"│", "└"}]
    assert row.startswith("│ scripted")
    assert end.startswith("└"), "the headline comes last"
    assert text.count("┏") == 1, "other tables are printed on request only (--by)"
    assert "success on test" in coevo("eval", "toy-run", "--split", "test")


def test_the_tasks_of_a_benchmark_are_listed(coevo: Coevo) -> None:
    rows = json.loads(coevo("tasks", "toy", "--split", "val", "--json"))
    assert {row["split"] for row in rows} == {"val"}
    text = coevo("tasks", "toy", "--split", "val")
    assert all(row["name"] in text for row in rows)


def test_brackets_in_an_instruction_are_printed_literally(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "marks with [x] what is packed [/tmp/x]"
    print_tasks([{"name": "a", "instruction": text}], 1)
    assert text in capsys.readouterr().out


def test_the_tasks_of_a_run_are_listed_with_their_lineage(coevo: Coevo, finished: Path) -> None:
    rows = json.loads(coevo("tasks", "toy-run", "--evolved", "--json"))
    arms = read_json(finished / "summary.json")["arms"]
    assert len(rows) == arms["coevolve"]["pool_size"] - 8
    assert {row["arm"] for row in rows} == {"coevolve"}
    assert all(row["signal"] in ("forgetting", "boundary", "rare") for row in rows)
    assert all(row["parents"] and row["parents"][0].startswith("toy/") for row in rows)
    everything = json.loads(coevo("tasks", "toy-run", "--json"))
    assert len(everything) == len(rows) + 2 * 8
    assert all(row["parents"][0].startswith("toy/") for row in everything)
    text = coevo("tasks", "toy-run", "--evolved")
    assert all(row["name"] in text for row in rows)


def test_the_evolved_tasks_of_all_runs_of_a_benchmark_are_listed(coevo: Coevo) -> None:
    rows = json.loads(coevo("tasks", "toy", "--evolved", "--json"))
    alone = json.loads(coevo("tasks", "toy-run", "--evolved", "--json"))
    assert [{**row, "run": "toy-run"} for row in alone] == rows
    assert "runs/ contains no run of webshop" in coevo("tasks", "webshop", "--evolved", code=2)
    for arguments in (["toy", "--evolved"], ["toy-run"]):
        text = coevo("tasks", *arguments, "--split", "val", code=2)
        assert "only work with a benchmark's own tasks" in text


def test_the_list_of_tasks_can_be_searched_and_limited(coevo: Coevo) -> None:
    rows = json.loads(coevo("tasks", "toy", "--search", "GREEN red", "--json"))
    assert rows
    assert all("green" in row["name"] and "red" in row["name"] for row in rows)
    assert (
        json.loads(coevo("tasks", "toy", "--search", "green red", "--limit=2", "--json"))
        == rows[:2]
    )
    assert f"2 of {len(rows)} tasks" in coevo("tasks", "toy", "--search", "green red", "--limit=2")
    assert "0 tasks" in coevo("tasks", "toy", "--search", "nothing of this kind")


def test_tasks_show_prints_one_task(coevo: Coevo) -> None:
    native = json.loads(coevo("tasks", "toy", "--limit=1", "--json"))[0]
    for name in (native["name"], native["id"]):
        text = coevo("tasks", "show", name)
        assert native["instruction"] in text
        assert "1  press" in text
    assert json.loads(coevo("tasks", "show", native["name"], "--json"))["verifier"]
    evolved = json.loads(coevo("tasks", "toy-run", "--evolved", "--json"))[0]
    text = coevo("tasks", "show", evolved["name"], "--run", "toy-run")
    assert evolved["instruction"] in text
    assert evolved["signal"] in text
    assert "pass --run" in coevo("tasks", "show", "nosuch", code=2)
    assert "`coevo tasks toy-run`" in coevo("tasks", "show", "x", "--run", "toy-run", code=2)


def test_an_evolved_task_can_be_played(coevo: Coevo, monkeypatch: pytest.MonkeyPatch) -> None:
    evolved = json.loads(coevo("tasks", "toy-run", "--evolved", "--json"))[0]
    lines = iter((*("press nothing",) * 9, *evolved["actions"]))
    monkeypatch.setattr("builtins.input", lambda *_: next(lines))
    text = coevo("play", "--run", "toy-run", "--task", evolved["name"])
    assert evolved["instruction"] in text
    assert "solved: score 1.00" in text
    monkeypatch.setattr("builtins.input", lambda *_: "q")
    headings = {coevo("play", "--run", "toy-run", "--seed=4").splitlines()[0] for _ in range(2)}
    assert len(headings) == 1
    assert "evolved" in headings.pop()
    assert "Name a benchmark, or a run" in coevo("play", code=2)
    assert "toy-run" in coevo("play", "webshop", "--run", "toy-run", code=2)


def test_resuming_a_finished_run_prints_that_it_is_finished(coevo: Coevo, finished: Path) -> None:
    report = (finished / "report.html").read_bytes()
    text = coevo("resume", "toy-run")
    assert "This is one seed: repeats can differ by more than these intervals." in text
    assert "toy-run is finished" in text
    assert "coevolve" in text
    assert (finished / "report.html").read_bytes() == report


def test_a_report_can_be_written_again_also_for_an_unfinished_run(
    coevo: Coevo, finished: Path
) -> None:
    before = (finished / "report.html").read_bytes()
    assert "Report: runs/toy-run/report.html" in coevo("report", "toy-run")
    assert (finished / "report.html").read_bytes() == before
    half = finished.with_name("half")
    shutil.copytree(finished, half)
    (half / "summary.json").unlink()
    assert "half/report.html" in coevo("report", "half")
    shutil.rmtree(half)


@pytest.mark.parametrize("missing", ["run.db", "metrics.jsonl", "manifest.json"])
def test_a_missing_file_of_a_run_is_reported_by_name(
    coevo: Coevo, finished: Path, missing: str
) -> None:
    part = finished.with_name("part")
    shutil.copytree(finished, part)
    (part / missing).unlink()
    there = sorted(part.rglob("*"))
    verbs = ["report", "tasks", "resume"] if missing == "run.db" else ["report"]
    code = 2 if missing == "manifest.json" else 1
    for verb in verbs:
        text = coevo(verb, "part", code=code)
        assert re.search(rf"part/{re.escape(missing)}[, ]", text)
        assert "is missing." in text
        assert not set(part.rglob("*")) - set(there) - {part / ".lock"}
    shutil.rmtree(part)


def test_a_report_can_be_written_to_another_folder(
    coevo: Coevo, finished: Path, tmp_path: Path
) -> None:
    report = tmp_path / "somewhere" / "else.html"
    report.parent.mkdir()
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    assert f"Report: {report}" in coevo("report", "toy-run", "--output", str(report))
    assert report.read_bytes() == (finished / "report.html").read_bytes()
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_a_report_that_cannot_be_written_suggests_the_output_option(
    coevo: Coevo, finished: Path
) -> None:
    full = finished.with_name("full")
    shutil.copytree(finished, full, ignore=shutil.ignore_patterns("report.html"))
    (full / "report.html").mkdir()
    assert "--output FILE" in coevo("report", "full", code=1)
    shutil.rmtree(full)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_config_show_prints_each_setting_with_its_origin(
    coevo: Coevo, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = json.loads(coevo("config", "show", TOY, "--set", "learner.lr=0.5", "--json"))
    by_key = {row["key"]: row for row in rows if not row["arm"]}
    assert by_key["learner.lr"] == {
        "arm": "", "key": "learner.lr", "value": 0.5, "origin": "command line"
    }  # fmt: skip
    assert by_key["warmup.n_tasks"]["origin"] == TOY
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(output, "console", Console(width=int(columns)))
    lines = coevo("config", "show", "quickstart", "--set", "learner.lr=0.5").splitlines()
    assert "learner.lr = 0.5  (command line)" in lines
    assert "name = quickstart  (preset quickstart)" in lines
    assert "sinks = (empty)" in lines
    of_run = lines[: lines.index("arm static uses these settings in place of those above:")]
    assert len(of_run) == len({line.partition(" = ")[0] for line in of_run}) > 150


def test_config_show_prints_the_settings_of_each_arm(coevo: Coevo) -> None:
    preset, own = "role_agent_webshop_qwen2_5_1_5b", "arm.role_agent.set.method.weight=0.5"
    rows = json.loads(coevo("config", "show", preset, "--set", own, "--json"))
    by_arm = {(row["arm"], row["key"]): (row["value"], row["origin"]) for row in rows}
    assert by_arm["", "learner.advantage"] == ("grpo", "default")
    used = ("gigpo", "method role_agent")
    assert by_arm["role_agent", "learner.advantage"] == used
    assert by_arm["role_agent", "method.weight"] == (0.5, "arm.role_agent.set")
    assert by_arm["role_agent", "method.gamma"] == (0.95, "default")
    assert ("role_agent", "learner.lr") not in by_arm  # that of the run
    lines = coevo("config", "show", preset).splitlines()
    block = lines[lines.index("arm role_agent uses these settings in place of those above:") :]
    assert "learner.advantage = gigpo  (method role_agent)" in block


def test_presets_are_listed_with_what_they_need(coevo: Coevo) -> None:
    rows = {row["name"]: row for row in json.loads(coevo("train", "--list", "--json"))}
    assert list(rows) == preset_names()
    assert rows["webshop_llm"]["benchmark"] == "webshop"
    assert rows["quickstart"]["arms"] == ["static", "coevolve"]
    text = " ".join(coevo("train", "--list").split())  # lines are as wide as the terminal
    for name, row in rows.items():
        assert f"{name} {row['about']} arms {', '.join(row['arms'])} cost {row['cost']} " in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("coevo tra", "train"),
        ("coevo train webshop_", "webshop_llm webshop_official webshop_smollm2"),
        ("coevo train quickstart --card h", "h100 h200"),
        ("coevo config show quick", "quickstart"),
        ("coevo play alf", "alfworld"),
        ("coevo resume to", "toy-run"),
        ("coevo eval to", "toy toy-run"),
        ("coevo eval toy --split v", "val"),
        ("coevo experiment contr", "controls"),
    ],
)
def test_the_shell_completes_commands_and_arguments(
    coevo: Coevo, words: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_COEVO_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert coevo().split() == expected.split()


def test_the_shell_completes_runs_and_evaluations(
    coevo: Coevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_COEVO_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "coevo compare toy")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert "toy-run" in coevo().split()  # other tests may have evaluated it


@pytest.mark.parametrize("verb", ["", "eval", "tasks", "tasks list", "play", "experiment", "serve"])
def test_help_has_a_short_option_and_shows_no_python_types(coevo: Coevo, verb: str) -> None:
    text = coevo(*verb.split(), "-h")
    assert text == coevo(*verb.split(), "--help")
    assert not re.findall(r"<\w+|\{|list\[|range", text.partition("Options")[2])


def test_help_shows_choices_and_units(coevo: Coevo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert "train|val|test|held_out" in coevo("eval", "-h")
    assert "tiny|small|paper" in coevo("experiment", "-h")
    assert coevo("serve", "-h").count("SECONDS") == 2
    assert "coevo compare [OPTIONS] A [B]" in coevo("compare", "-h")


@pytest.mark.parametrize(
    "verb",
    [
        *("envs", "doctor", "install", "play", "train", "resume", "eval", "report", "config show"),
        "compare",
        *("tasks", "tasks list", "tasks show", "tasks review", "tasks import", "tasks export"),
        *("model list", "model fetch"),
    ],
)
def test_help_has_an_example(coevo: Coevo, verb: str) -> None:
    assert f"coevo {verb} " in " ".join(coevo(*verb.split(), "--help").split())


def test_only_training_needs_pytorch_and_reports_that_it_is_missing(finished: Path) -> None:
    looking = (
        ["config", "show", "quickstart"],
        ["tasks", "toy-run", "--evolved"],
        ["report", "toy-run"],
        ["train", "quickstart", "--dry-run"],
        ["train", "alfworld", "--set", "policy.kind=transformers", "--dry-run"],
        ["eval", "toy", "--policy", "random"],
    )
    commands = [*looking, ["train", "quickstart", "--name", "never"]]
    code = f"""
import sys
sys.modules["torch"] = None
from tests import toy
toy.register()
from coevo_gym.cli import main
codes = []
for arguments in {commands}:
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        codes.append(end.code)
print("codes:", codes)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=finished.parents[1],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == f"codes: {[0] * len(looking) + [3]}", done.stderr
    assert "[train]'`" in done.stderr
    assert not finished.with_name("never").exists()
