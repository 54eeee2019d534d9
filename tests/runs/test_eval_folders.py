"""``coevo eval`` keeps what it finds, and goes on where it was stopped, whatever stopped it."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.core.errors import DataError
from coevo_gym.core.seams import Completion, Prompt
from coevo_gym.core.spend import Usage
from coevo_gym.core.stats import wilson_interval
from coevo_gym.core.task import Split
from coevo_gym.episodes.runner import episode_seed
from coevo_gym.prompts.template import load_cue
from coevo_gym.runs import progress_reports as run_progress
from coevo_gym.runs.config import RunConfig
from coevo_gym.runs.evals import job
from coevo_gym.runs.manifest import prompt_id
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.folder import read_json, read_lines
from coevo_gym.store.progress_file import WorkProgress, read_progress
from tests.runs.conftest import Child, Coevo
from tests.toy import BENCHMARK, ToyEnv

NewChild = Callable[..., Child]
TWELVE = ("eval", "toy", "--policy", "random", "--set", "evaluation.n_tasks=12")


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    return tmp_path


def evaluation(coevo: Coevo, *arguments: str) -> tuple[dict[str, Any], EvalFolder]:
    """What the command says of an evaluation, and its folder."""
    summary = json.loads(coevo("eval", *arguments, "--json"))
    return summary, EvalFolder(Path(summary["folder"]))


def test_an_evaluation_folder_contains_settings_results_and_trajectories(coevo: Coevo) -> None:
    summary, folder = evaluation(coevo, *TWELVE[1:])
    assert summary.pop("folder") == str(folder.path)
    assert read_json(folder.summary) == summary
    tasks = {task.id: task for task in BENCHMARK.tasks(Split.VAL)}
    lines = read_lines(folder.results)
    assert [line["id"] for line in sorted(lines, key=lambda line: line["id"])] == sorted(tasks)[:12]
    for line, trajectory in folder.read_episodes():
        assert (line.success, line.score) == (trajectory.success, trajectory.score)
        assert (line.end_reason, line.steps) == (trajectory.end_reason, len(trajectory.steps))
        assert (line.id, line.name) == (trajectory.task_id, tasks[line.id].name)
        assert line.seed == episode_seed(0, line.id)
        assert f"first:{line.scenario.partition('-')[0]}" in line.tags
    successes = sum(line["success"] for line in lines)
    assert summary["success"] == successes / 12
    assert [summary["low"], summary["high"]] == list(wilson_interval(successes, 12))
    assert summary["steps"] == sum(line["steps"] for line in lines) / 12
    config = folder.read_config()
    assert config["n_tasks"] == 12
    assert {"weights", "prompt", "tasks", "versions", "seed", "env"} <= set(config)


def test_an_evaluation_prints_the_command_to_view_it(coevo: Coevo) -> None:
    output = coevo(*TWELVE, "--name", "seen")
    assert "Look inside: coevo view evals/seen" in output.splitlines()


def test_success_is_reported_by_type_of_task(coevo: Coevo) -> None:
    thirty = ("toy", "--policy=random", "--split=train", "--set=evaluation.n_tasks=30")
    summary, folder = evaluation(coevo, *thirty)
    lines = list(folder.read_results().values())
    for colour, rate in summary["types"]["first"].items():
        mine = [line.success for line in lines if f"first:{colour}" in line.tags]
        assert (rate["tasks"], rate["success"]) == (len(mine), sum(mine) / len(mine))
        assert [rate["low"], rate["high"]] == list(wilson_interval(sum(mine), len(mine)))
    plain, text = coevo("eval", *thirty), coevo("eval", *thirty, "--by", "first")
    types = summary["types"]["first"]
    colours = [colour for colour, rate in types.items() if rate["tasks"] >= 5]
    assert 0 < len(colours) < len(types)
    assert "--by first" in plain
    assert [colour for colour in types if f"│ {colour} " in plain] == []
    assert [colour for colour in types if f"│ {colour} " in text] == colours
    few = len(types) - len(colours)
    left_out = f"{few} of {len(types)} values of first have fewer than 5 tasks and are not shown."
    assert left_out in text
    assert left_out in coevo("eval", *thirty, "--by", "all")
    assert text.index(left_out) < text.index("Evaluation: ") < text.index("│ random")


def test_an_unknown_kind_of_tag_is_refused_before_any_episode(coevo: Coevo) -> None:
    command = ("eval", "toy", "--policy", "random", "--name", "unplayed", "--by", "frist")
    assert "Set --by to one of: colour, first, all." in coevo(*command, code=2)
    assert not Path("evals/unplayed").exists()


def test_repeating_a_finished_evaluation_prints_all_of_its_env_steps(coevo: Coevo) -> None:
    command = (*TWELVE, "--split", "train")
    summary = json.loads(coevo(*command, "--json"))
    text = coevo(*command)
    assert "are already done" in text
    (row,) = (line for line in text.splitlines() if line.startswith("│ random"))
    assert row.split("│")[-2].strip() == f"{round(summary['steps'] * summary['episodes']):,}"


def test_progress_of_a_model_evaluation_is_printed_from_its_first_answers(
    coevo: Coevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[WorkProgress]()

    class Llama:
        def generate(self, requests: list[Prompt]) -> list[Completion]:
            progress = read_progress(Path("evals/early"))
            assert progress is not None
            seen.append(progress)
            used = Usage(calls=1, prompt_tokens=90, completion_tokens=10)
            return [Completion("<action>think</action>", None, usage=used) for _ in requests]

    monkeypatch.setattr(run_progress, "_EVERY_S", 0.0)
    monkeypatch.setattr(job, "make_policy", lambda *args, **kwargs: Llama())
    args = (
        "--yes",
        "--name",
        "early",
        "--set",
        "evaluation.n_tasks=2",
        "--set",
        "benchmark.max_steps=4",
    )
    text = coevo("eval", "webshop", "--policy", "openai:llama", *args)
    assert [(progress.done, progress.steps, progress.tokens) for progress in seen] == [
        (0, 0, 0), (0, 2, 200), (0, 4, 400), (0, 6, 600),
    ]  # fmt: skip
    assert seen[1].left_s is not None
    assert re.search(r"openai:llama: 2 episodes × up to 4 steps: about \d+ s\n", text)
    assert "openai:llama: 0/2, 2 steps, 200 tokens" in text


def uncut(coevo: Coevo, *arguments: str) -> tuple[dict[str, Any], list[str]]:
    """What an evaluation finds that nobody stops, and its lines."""
    summary, folder = evaluation(coevo, *arguments[1:], "--name", "uncut")
    del summary["folder"]
    return summary, sorted(folder.results.read_text().splitlines())


@pytest.mark.parametrize("where", ["kept:1", "kept:7", "stored:1", "stored:5"])
def test_a_killed_evaluation_resumes_and_loses_no_results(
    coevo: Coevo, child: NewChild, where: str
) -> None:
    scripted = tuple("scripted" if word == "random" else word for word in TWELVE)
    summary, lines = uncut(coevo, *scripted)
    cut = child(where, *scripted, "--name", "cut", module="tests.runs.eval_stops")
    cut.wait_for("stopped here")
    cut.process.kill()
    cut.end()
    folder = EvalFolder.of("cut")
    done = folder.results.read_text().splitlines() if folder.results.exists() else []
    assert len(done) == int(where[-1]) - where.startswith("stored")
    again, _ = evaluation(coevo, *scripted[1:], "--name", "cut")
    assert {**again, "folder": None} == {**summary, "folder": None}
    now = folder.results.read_text().splitlines()
    assert now[: len(done)] == done
    assert sorted(now) == lines
    assert len(list(folder.read_episodes())) == 12


def test_ctrl_c_stops_an_evaluation_at_once_and_prints_how_to_resume(
    coevo: Coevo, child: NewChild
) -> None:
    cut = child("kept:5", *TWELVE, "--name", "cut", module="tests.runs.eval_stops")
    cut.wait_for("stopped here")
    cut.process.send_signal(signal.SIGINT)
    assert cut.end() == 130
    assert "Finished episodes are in evals/cut; run the same command to continue." in cut.text
    assert "Traceback" not in cut.text
    before = EvalFolder.of("cut").results.read_text()
    assert "5 of 12 episodes are already done" in coevo(*TWELVE, "--name", "cut")
    assert EvalFolder.of("cut").results.read_text().startswith(before)
    assert len(EvalFolder.of("cut").read_results()) == 12
    text = coevo(*TWELVE, "--name", "cut")
    assert "All 12 episodes are already done" in text


def test_results_truncated_at_any_byte_are_completed(coevo: Coevo) -> None:
    scripted = ("eval", "toy", "--policy", "scripted", "--set", "evaluation.n_tasks=3")
    _, lines = uncut(coevo, *scripted)
    folder = EvalFolder.of("uncut")
    whole = folder.results.read_bytes()
    for end in range(0, len(whole), 97):
        folder.results.write_bytes(whole[:end])
        evaluation(coevo, *scripted[1:], "--name", "uncut")
        assert sorted(read_lines(folder.results), key=lambda line: line["id"]) == sorted(
            map(json.loads, lines), key=lambda line: line["id"]
        )


def test_an_invalid_line_in_the_results_is_an_error(coevo: Coevo) -> None:
    evaluation(coevo, *TWELVE[1:], "--name", "mine")
    with EvalFolder.of("mine").results.open("a") as file:
        file.write('{"id": "x"}\n')
    assert "contains an invalid line" in coevo(*TWELVE, "--name", "mine", code=1)


def test_a_folder_with_a_different_evaluation_is_refused_with_the_differences(coevo: Coevo) -> None:
    coevo(*TWELVE, "--name", "mine")
    text = coevo(*TWELVE[:-1], "evaluation.n_tasks=11", "--set=seed=4", "--name", "mine", code=2)
    assert "evals/mine contains a different evaluation" in text
    assert "n_tasks: 12 there, 11 now" in text
    assert "seed: 0 there, 4 now" in text
    assert "--overwrite" in text
    assert "policy: random there, scripted now" in coevo(
        "eval", "toy", "--policy", "scripted", "--name", "mine", code=2
    )
    config = EvalFolder.of("mine").config
    old = {**read_json(config), "versions": {"coevo_gym": "0.0.1"}}
    config.write_text(json.dumps(old))
    assert "versions.coevo_gym: 0.0.1 there" in coevo(*TWELVE, "--name", "mine", code=2)
    coevo(*TWELVE, "--name", "mine", "--overwrite")
    assert len(EvalFolder.of("mine").read_results()) == 12


def test_each_unnamed_evaluation_gets_its_own_folder(coevo: Coevo) -> None:
    first, folder = evaluation(coevo, *TWELVE[1:])
    again, same = evaluation(coevo, *TWELVE[1:])
    _, another = evaluation(coevo, *TWELVE[1:], "--set", "seed=1")
    assert folder == same != another
    assert first == again
    assert folder.path.name.startswith("toy-random-val-")


def test_a_folder_that_is_not_an_evaluation_is_left_unchanged(coevo: Coevo, beside: Path) -> None:
    other = beside / "evals" / "thesis"
    other.mkdir(parents=True)
    (other / "thesis.tex").write_text("years")
    for more in ((), ("--overwrite",)):
        text = coevo(*TWELVE, "--name", "thesis", *more, code=2)
        assert "is not empty and is not an evaluation" in text
    assert (other / "thesis.tex").read_text() == "years"


def test_two_processes_cannot_use_one_evaluation_folder(coevo: Coevo, child: NewChild) -> None:
    first = child("kept:2", *TWELVE, "--name", "one", module="tests.runs.eval_stops")
    first.wait_for("stopped here")
    assert "is in use by another process" in coevo(*TWELVE, "--name", "one", code=1)
    first.process.kill()
    first.end()


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Scenarios whose engine fails."""
    scenarios, real = set[str](), ToyEnv._act

    def act(self: ToyEnv, action: str) -> Any:
        if self.task.scenario in scenarios:
            raise DataError("the engine has died")
        return real(self, action)

    monkeypatch.setattr(ToyEnv, "_act", act)
    yield scenarios
    scenarios.clear()


def test_lost_episodes_are_counted_apart_from_failures_and_run_again(
    coevo: Coevo, broken: set[str]
) -> None:
    tasks = sorted(BENCHMARK.tasks(Split.VAL), key=lambda task: task.id)[:12]
    broken.update(task.scenario for task in tasks[:2])
    scripted = ("toy", "--policy", "scripted", "--set", "evaluation.n_tasks=12", "--name", "mine")
    summary, folder = evaluation(coevo, *scripted)
    assert (summary["success"], summary["n_tasks"], summary["lost"]) == (1.0, 10, 2)
    lost = read_lines(folder.lost)
    assert {line["id"] for line in lost} == {task.id for task in tasks[:2]}
    assert {line["error"] for line in lost} == {"the engine has died"}
    assert not {line["id"] for line in lost} & {line.id for line in folder.read_results().values()}
    assert "2 of 12 episodes were lost to a fault" in coevo("eval", *scripted)
    broken.clear()
    healed, _ = evaluation(coevo, *scripted)
    assert (healed["success"], healed["n_tasks"], healed["lost"]) == (1.0, 12, 0)
    assert len(read_lines(folder.results)) == 12


def test_an_evaluation_whose_episodes_are_all_lost_fails_without_a_summary(
    coevo: Coevo, broken: set[str]
) -> None:
    broken.update(task.scenario for task in BENCHMARK.tasks(Split.VAL))
    text = coevo(*TWELVE, "--name", "mine", code=1)
    assert "All 12 evaluation episodes were lost" in text
    assert not EvalFolder.of("mine").summary.exists()


def test_several_samples_give_pass_at_k(coevo: Coevo) -> None:
    summary, folder = evaluation(coevo, *TWELVE[1:], "--samples", "5", "--split", "train")
    lines = folder.read_results()
    assert len(lines) == 60
    assert len({line.seed for line in lines.values()}) == 60
    tasks = {id for id, _ in lines}
    solved = [sum(lines[id, sample].success for sample in range(5)) for id in tasks]
    assert summary["success"] == pytest.approx(sum(solved) / 60)
    assert summary["pass_at"]["1"] == pytest.approx(summary["success"])
    assert summary["pass_at"]["5"] == sum(n > 0 for n in solved) / 12
    assert set(summary["pass_at"]) == {"1", "2", "4", "5"}
    assert len({trajectory.actions for _, trajectory in folder.read_episodes()}) > 30
    _, again = evaluation(coevo, *TWELVE[1:], "--samples=5", "--split=train", "--name=again")
    assert again.results.read_text() == folder.results.read_text()  # the same draws
    text = coevo(*TWELVE, "--samples", "5", "--split", "train")
    assert "avg@5 on train" in text
    assert "pass@5" in text
    assert "would be identical" in coevo(
        "eval", "toy", "--policy", "scripted", "--samples", "2", code=2
    )


def test_an_evaluation_killed_between_samples_resumes_with_the_missing_ones(
    coevo: Coevo, child: NewChild
) -> None:
    few = ("eval", "toy", "--policy=random", "--set=evaluation.n_tasks=3", "--samples=3")
    cut = child("kept:7", *few, "--name", "cut", module="tests.runs.eval_stops")
    cut.wait_for("stopped here")
    cut.process.kill()
    cut.end()
    evaluation(coevo, *few[1:], "--name", "cut")
    lines = EvalFolder.of("cut").read_results()
    assert sorted(lines) == sorted((id, s) for id in {key[0] for key in lines} for s in range(3))
    assert len(lines) == 9


def test_a_file_of_user_tasks_must_be_nonempty_and_of_one_split(coevo: Coevo, beside: Path) -> None:
    mixed = [BENCHMARK.tasks(split)[0] for split in (Split.VAL, Split.TEST)]
    (beside / "mixed.jsonl").write_text("".join(f"{task.to_json()}\n" for task in mixed))
    (beside / "none.jsonl").write_text("")
    command = ("eval", "toy", "--policy", "random", "--name", "mine", "--env")
    assert "is a test task" in coevo(*command, "tasks=mixed.jsonl", code=2)
    coevo(*command, "tasks=none.jsonl", code=2)
    (beside / "one.jsonl").write_text(mixed[0].to_json())
    assert "random: 1/1" in coevo(*command, "tasks=one.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("eval toy --policy random --samples 0", "--samples"),
        ("eval toy --policy random --on webshop", "--on webshop only works if the source is a run"),
        ("eval toy --policy random --name ../x", "--name takes letters"),
    ],
)
def test_every_command_line_mistake_prints_one_clear_error(
    coevo: Coevo, arguments: str, message: str
) -> None:
    text = coevo(*arguments.split(), code=2)
    assert message in text
    assert "Traceback" not in text


class TestPolicyOfARun:
    """A policy of a run is evaluated in a folder outside the run."""

    @pytest.fixture
    def beside(self, finished: Path, tmp_path: Path) -> Path:
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "toy-run").symlink_to(finished)
        return tmp_path

    def test_one_sample_reproduces_the_numbers_of_the_run(
        self, coevo: Coevo, finished: Path
    ) -> None:
        table = {row["name"]: row for row in read_json(finished / "summary.json")["table"]}
        summary, folder = evaluation(coevo, "toy-run", "--policy", "static")
        same = ("name", "success", "low", "high", "score", "n_tasks", "env_steps")
        assert {key: summary[key] for key in same} == {key: table["static"][key] for key in same}
        config = folder.read_config()
        assert (
            config["weights"] == read_json(finished / "summary.json")["arms"]["static"]["weights"]
        )
        assert (config["source"], config["temperature"]) == ("toy-run", 0.0)

    def test_several_samples_use_the_training_temperature(self, coevo: Coevo) -> None:
        summary, folder = evaluation(coevo, "toy-run", "--policy", "warm-up", "--samples", "4")
        assert folder.read_config()["temperature"] == 1.0
        actions: dict[str, set[tuple[str, ...]]] = {}
        for line, trajectory in folder.read_episodes():
            actions.setdefault(line.id, set()).add(trajectory.actions)
        assert len(actions) == 10
        assert max(map(len, actions.values())) > 1
        again = ("toy-run", "--policy", "warm-up", "--samples", "4", "--name", "again")
        assert evaluation(coevo, *again)[1].read_results() == folder.read_results()
        assert summary["pass_at"]["1"] <= summary["pass_at"]["4"]

    def test_the_policy_can_be_evaluated_on_another_benchmark(self, coevo: Coevo) -> None:
        summary, folder = evaluation(coevo, "toy-run", "--policy", "warm-up", "--on", "webshop")
        config = folder.read_config()
        assert (config["benchmark"], config["n_tasks"]) == ("webshop", 10)
        assert summary["n_tasks"] == 10
        assert "webshop" in folder.path.name
        assert {line.name.split("/")[0] for line in folder.read_results().values()} == {"webshop"}
        here, there = (
            evaluation(coevo, "toy-run", *more)[1].read_config() for more in ((), ("--on", "toy"))
        )
        assert here == there
        assert "Unknown benchmark 'webshp'" in coevo("eval", "toy-run", "--on", "webshp", code=2)

    def test_the_held_out_share_also_applies_to_another_benchmark(
        self, coevo: Coevo, finished: Path, beside: Path
    ) -> None:
        aside = beside / "runs" / "aside"
        shutil.copytree(finished, aside)
        manifest = read_json(aside / "manifest.json")
        manifest["config"]["benchmark"]["hold_out"] = 0.5
        manifest["config"]["evaluation"]["split"] = "held_out"
        (aside / "manifest.json").write_text(json.dumps(manifest))
        for more in ((), ("--on", "webshop")):
            summary, folder = evaluation(coevo, "aside", "--split", "held_out", *more)
            assert (summary["n_tasks"], summary["split"]) == (10, "held_out")
            assert folder.read_config()["hold_out"] == 0.5

    def test_a_benchmark_that_the_policy_cannot_play_is_refused(
        self, coevo: Coevo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from coevo_gym.core.benchmark import get_benchmark

        monkeypatch.setattr(get_benchmark("webshop"), "_choices", lambda view: ())
        text = coevo("eval", "toy-run", "--on", "webshop", code=2)
        assert (
            "coevolve of toy-run cannot be evaluated on webshop: The env offers no action after"
            in text
        )

    def test_a_folder_with_an_evaluation_of_other_weights_is_refused(self, coevo: Coevo) -> None:
        coevo("eval", "toy-run", "--policy", "static", "--name", "mine")
        text = coevo("eval", "toy-run", "--policy", "coevolve", "--name", "mine", code=2)
        assert "weights: " in text
        shutil.rmtree("evals/mine")


def test_memory_prompts_are_part_of_the_identity_of_an_evaluation() -> None:
    def of(history: str, memory: str) -> dict[str, Any]:
        chat = {"history": history, "memory": memory}
        policy = {"kind": "transformers", "model": {"path": "x"}, "chat": chat}
        return prompt_id(RunConfig.model_validate({"policy": policy}))

    by_rule = of("window", "rule")
    assert by_rule.keys() == {"name", "version", "hash"}
    for history, prompt in (("window", "chat/notes"), ("self_managed", "chat/room")):
        assert of(history, "model") == {**by_rule, "memory": load_cue(prompt).hash}
