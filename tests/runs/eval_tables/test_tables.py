"""Tables of evaluations: results, failures, caps, reuse, and mistakes in their files."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.core.errors import BenchmarkNotInstalled
from coevo_gym.core.stats import wilson_interval
from coevo_gym.provision import coevo_home
from coevo_gym.runs.evals.comparison import compare
from coevo_gym.runs.evals.evaluation import KeptInFolder
from coevo_gym.runs.evals.sides import find_sides
from coevo_gym.runs.evals.tables import definition
from coevo_gym.runs.evals.tables.running import find_identical_evaluation
from coevo_gym.runs.folders.removing import find_removable
from coevo_gym.store import approvals
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.folder import read_json, write_json
from coevo_gym.view.collection import RunCollection
from coevo_gym.view.library import Library
from coevo_gym.view.model.eval_tables import eval_table_detail
from coevo_gym.view.model.evals import eval_detail
from coevo_gym.view.model.tables import table_list
from coevo_gym.view.refusals import Damaged
from tests import toy
from tests.agents.fake_openai import FakeOpenAI
from tests.runs.conftest import Coevo
from tests.runs.test_spending import searching

FIVE = "n_tasks = 5\n"
MODELS = """
[[models]]
policy = "random"
[[models]]
name = "reference"
policy = "scripted"
"""
SHOP = '[[benchmarks]]\nbenchmark = "webshop"\n'
TOY = """
[[benchmarks]]
benchmark = "toy"
[[benchmarks]]
name = "practice"
benchmark = "toy"
split = "train"
samples = 2
seeds = "1-2"
"""
CELLS = {
    *("random-toy-val-0", "random-practice-1", "random-practice-2"),
    *("reference-toy-val-0", "reference-practice-1", "reference-practice-2"),
}


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    toy.register()
    return tmp_path


def write(text: str, name: str = "mine.toml") -> str:
    Path(name).write_text(text)
    return name


def table(name: str = "mine") -> dict[str, Any]:
    content: dict[str, Any] = read_json(Path("evals") / name / "table.json")
    return content


def stored_bytes() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path("evals").rglob("*") if path.is_file()}


def endpoint_entry(server: FakeOpenAI, name: str = "remote", **settings: object) -> str:
    sets = {
        "policy.endpoint.base_url": server.url,
        "policy.endpoint.api_key_env": "none",
        "policy.endpoint.max_attempts": 1,
        **settings,
    }
    pairs = ", ".join(f'"{key}" = {json.dumps(value)}' for key, value in sets.items())
    return f'[[models]]\nname = "{name}"\npolicy = "openai:fake"\nset = {{ {pairs} }}\n'


def test_a_table_has_a_result_for_each_model_and_benchmark(coevo: Coevo) -> None:
    text = coevo("eval", write(FIVE + MODELS + TOY))
    folders = {path.name for path in Path("evals/mine").iterdir() if path.is_dir()}
    assert folders == CELLS
    whole = table()
    assert whole["finished"]
    by_place = {(one["row"], one["column"]): one for one in whole["results"]}
    assert by_place["reference", "toy-val"]["success"] == 1.0
    low, high = wilson_interval(5, 5)
    assert (by_place["reference", "toy-val"]["low"], by_place["reference", "toy-val"]["high"]) == (
        low,
        high,
    )
    assert by_place["random", "practice"]["seeds"] == 2
    assert "[1/6] random on toy-val, seed 0" in text
    assert f"│ reference │ 100.0 [{100 * low:.1f}, 100.0] │" in text
    assert "± is the sample standard deviation over seeds." in text
    markdown = Path("evals/mine/table.md").read_text()
    assert f"| reference | 100.0 [{100 * low:.1f}, 100.0] |" in markdown
    assert Path("evals/mine/table.csv").read_text().startswith("model,benchmark,state,seeds,tasks")
    # Reference solutions are played once per task, however many samples the file asks for.
    assert EvalFolder.of("mine/reference-practice-1").read_config()["samples"] == 1
    assert EvalFolder.of("mine/random-practice-1").read_config()["samples"] == 2


def test_a_table_is_listed_and_suggested_beside_single_evaluations(coevo: Coevo) -> None:
    coevo("eval", write(FIVE + MODELS + TOY))
    text = coevo("view", "mein", code=2)
    assert "There is no run or evaluation 'mein'. Did you mean 'mine'? In runs/: none." in text
    assert "In evals/: mine (a table)." in text
    for command in (("show", "mine"), ("compare", "mine", "mine/random-toy-val-0")):
        text = coevo(*command, code=2)
        assert "mine is a table of 6 evaluations. Name one of them: evals/mine/random-pra" in text


def test_each_cell_is_an_ordinary_evaluation(coevo: Coevo) -> None:
    coevo("eval", write(FIVE + MODELS + TOY))
    sides = find_sides("mine/random-toy-val-0", "evals/mine/reference-toy-val-0")
    assert compare(*sides).tasks == 5
    evaluations = Library(["mine"]).evals()
    assert set(evaluations) == {f"mine~{name}" for name in CELLS} == set(Library().evals())
    names = {one.name for one in RunCollection(Library(["mine"])).evals()}
    assert names == {f"mine/{name}" for name in CELLS}
    listing = json.loads(coevo("runs", "list", "mine", "--json"))["evals"]
    assert {row["name"] for row in listing} == names
    coevo("export", "mine", "--split", "train", "--out", "all")
    assert read_json(Path("all/export.json"))["splits"]["train"]["episodes"] == 30
    removable = find_removable("mine")
    assert (removable.kind, len(removable.folders)) == ("table", len(CELLS))
    coevo("runs", "rm", "mine", "--yes")
    assert not Path("evals/mine").exists()


def test_the_page_of_a_table_shows_what_the_terminal_prints(coevo: Coevo, tmp_path: Path) -> None:
    text = coevo("eval", write(FIVE + MODELS + TOY))
    (brief,) = table_list(RunCollection(Library())).eval_tables
    assert (brief.id, brief.models, brief.benchmarks) == ("mine", 2, 2)
    assert brief.cells == {"finished": 6}
    detail = eval_table_detail(RunCollection(Library(["mine"])), "mine")
    for line in (detail.heads, *detail.lines):
        (printed,) = (one for one in text.splitlines() if all(cell in one for cell in line))
        assert re.split(" *[┃│] *", printed)[1:-1] == list(line)
    assert all(sentence in text for sentence in (*detail.explanations, *detail.notes))
    assert {cell.eval for cell in detail.cells} == {f"mine~{name}" for name in CELLS}
    assert [one.tasks for one in detail.results] == [5, 5, 5, 5]
    shutil.move("evals/mine", "elsewhere")  # the cells are found beside the table
    moved = eval_table_detail(RunCollection(Library(["elsewhere"])), "elsewhere")
    assert {cell.eval for cell in moved.cells} == {f"elsewhere~{name}" for name in CELLS}
    exported = tmp_path / "pages.html"
    coevo("view", "elsewhere", "--export", str(exported))
    assert 'data-home="eval-tables/elsewhere"' in exported.read_text()


def test_the_page_of_a_table_shows_its_progress_while_it_runs(
    coevo: Coevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is there from the start, and after each cell it has another number."""
    seen: list[tuple[list[str], list[tuple[int, int]]]] = []
    real = KeptInFolder.add

    def add(self: KeptInFolder, line: Any, trajectory: Any) -> None:
        real(self, line, trajectory)
        detail = eval_table_detail(RunCollection(Library()), "mine")
        states = [cell.state for cell in detail.cells]
        seen.append((states, [(one.done, one.total) for one in detail.cells]))

    monkeypatch.setattr(KeptInFolder, "add", add)
    coevo("eval", write("n_tasks = 2\n" + MODELS + TOY.partition("[[benchmarks]]\nname")[0]))
    assert seen == [
        (["running", "missing"], [(1, 2), (0, 0)]),
        (["running", "missing"], [(2, 2), (0, 0)]),
        (["finished", "running"], [(0, 0), (1, 2)]),
        (["finished", "running"], [(0, 0), (2, 2)]),
    ]


def test_a_damaged_table_says_how_to_write_it_again(coevo: Coevo) -> None:
    coevo("eval", write(FIVE + MODELS + TOY))
    for text in ("{", "[]", '{"results": [{"row": "a"}], "cells": []}'):
        Path("evals/mine/table.json").write_text(text)
        collection = RunCollection(Library())
        assert [one.title for one in table_list(collection).eval_tables] == ["mine"]
        with pytest.raises(Damaged):
            eval_table_detail(collection, "mine")
    coevo("eval", "mine.toml")
    assert eval_table_detail(RunCollection(Library()), "mine").lines


def test_a_finished_table_is_printed_again_without_playing(coevo: Coevo) -> None:
    file = write(FIVE + MODELS + TOY)
    first = coevo("eval", file, "--json")
    before = {path: path.stat().st_mtime_ns for path in Path("evals").rglob("results.jsonl")}
    assert coevo("eval", file, "--json") == first
    assert "6 of 6 evaluations are already done. Use --overwrite" in coevo("eval", file)
    after = {path: path.stat().st_mtime_ns for path in Path("evals").rglob("results.jsonl")}
    assert after == before


def test_a_dry_run_prints_the_plan_and_creates_nothing(coevo: Coevo) -> None:
    with FakeOpenAI(answer=searching) as server:
        price = {"policy.endpoint.usd_per_million_prompt_tokens": 1.0}
        file = write(endpoint_entry(server, **price) + MODELS + SHOP + TOY)
        report = json.loads(coevo("eval", file, "-n", "3", "--dry-run", "--json"))
        text = coevo("eval", file, "-n", "3", "--dry-run")
        assert server.answered == 0
    totals = [cell["total"] for cell in report["cells"] if cell["row"] != "remote"]
    assert totals == [3, 3, 6, 6, 3, 3, 3, 3]
    (asked,) = report["asked"]
    assert asked["usd"] > 0
    assert asked["cost"]["calls"] == 3 * report["cells"][0]["max_steps"]
    assert "requests to this model" in text
    assert not Path("evals").exists()


def test_a_cell_that_fails_does_not_stop_the_others_and_goes_on_later(coevo: Coevo) -> None:
    with FakeOpenAI(answer=searching) as server:
        down = endpoint_entry(server)
        file = write(FIVE + down + MODELS + SHOP)
    settings = ("--set", "benchmark.max_steps=2")
    text = coevo("eval", file, *settings, code=1)
    assert "1 of 3 cells failed for the reasons above. Solve these problems, then run the" in text
    assert "│ remote    │ failed" in text
    assert "remote on webshop-val, seed 0: failed. ModelError: fake at http://127.0.0.1" in text
    whole = table()
    assert [cell["state"] for cell in whole["cells"]] == ["failed", "finished", "finished"]
    assert not whole["finished"]
    port = int(down.split("127.0.0.1:")[1].split("/")[0])
    with FakeOpenAI(answer=searching) as server:
        Path(file).write_text(Path(file).read_text().replace(f":{port}/", f":{server.url[17:-3]}/"))
        folder = EvalFolder.of("mine/remote-webshop-val-0")
        config = read_json(folder.config)
        config["settings"]["endpoint"]["base_url"] = server.url
        write_json(folder.config, config)
        text = coevo("eval", file, *settings)
    assert table()["finished"]
    assert "failed" not in text


def test_a_benchmark_that_is_not_installed_fails_alone(
    coevo: Coevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = definition.make_model_job

    def make(benchmark: str, *arguments: Any, **keywords: Any) -> Any:
        if benchmark == "webshop":
            raise BenchmarkNotInstalled("WebShop is not installed. Run `coevo install webshop`.")
        return real(benchmark, *arguments, **keywords)

    monkeypatch.setattr(definition, "make_model_job", make)
    file = write(FIVE + MODELS + SHOP + TOY)
    plan = coevo("eval", file, "--dry-run")
    assert plan.count("random, reference on webshop-val, seed 0: BenchmarkNotInstalled: WebSh") == 1
    text = coevo("eval", file, code=1)
    assert "2 of 8 cells failed" in text
    assert "BenchmarkNotInstalled: WebShop is not installed. Run `coevo install webshop`." in text
    assert sum(cell["state"] == "finished" for cell in table()["cells"]) == 6
    assert text.count("random, reference on webshop-val, seed 0: failed. BenchmarkNotInstal") == 1


def test_the_caps_of_a_model_hold_for_all_its_cells_and_starts(coevo: Coevo) -> None:
    cap = 40_000
    with FakeOpenAI(answer=searching) as server:
        entry = endpoint_entry(
            server,
            **{"policy.endpoint.max_tokens_total": cap, "policy.endpoint.max_concurrency": 2},
        )
        columns = "".join(
            f'[[benchmarks]]\nname = "{name}"\nbenchmark = "webshop"\nsplit = "{split}"\n'
            for name, split in (("one", "val"), ("two", "train"))
        )
        file = write(f"n_tasks = 12\n{entry}{columns}")
        for _ in range(2):
            text = coevo("eval", file, "--set", "benchmark.max_steps=5", code=1)
        assert server.prompt_tokens + server.completion_tokens <= cap
        spent = [
            read_json(path)["capped_tokens"]
            for path in sorted(Path("evals").rglob("endpoint.json"))
        ]
    assert sum(spent) <= cap
    assert "A model's caps include all of its cells; the other cells of remote have used" in text


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the jobs made for each cell."""
    counts, real = Counter[str](), definition.EvalCell.make_job

    def make_job(cell: definition.EvalCell, *arguments: Any) -> Any:
        counts[cell.name] += 1
        return real(cell, *arguments)

    monkeypatch.setattr(definition.EvalCell, "make_job", make_job)
    return counts


def test_the_job_of_a_cell_is_created_once(coevo: Coevo, jobs: Counter[str]) -> None:
    """Creating one may load or hash weights."""
    file, once = write(FIVE + MODELS + TOY), dict.fromkeys(CELLS, 1)
    for command in (
        ("eval", file),
        ("eval", file),  # finished
        ("eval", file, "--dry-run"),
        ("eval", file, "--overwrite", "--dry-run"),
        ("eval", file, "--overwrite"),
    ):
        jobs.clear()
        coevo(*command)
        assert jobs == once, command
    for command in (("eval", file, "-n", "4"), ("eval", file, "-n", "4", "--dry-run")):
        jobs.clear()
        assert "6 of 6 cells differ" in coevo(*command, code=2)
        assert jobs == once, command


def test_a_changed_table_is_refused_before_its_cost_is_asked(
    coevo: Coevo, jobs: Counter[str]
) -> None:
    with FakeOpenAI(answer=searching) as server:
        price = {"policy.endpoint.usd_per_million_prompt_tokens": 1.0}
        file = write(endpoint_entry(server, **price) + SHOP)
        short = ("--set", "benchmark.max_steps=1")
        coevo("eval", file, "-n", "2", "--yes", *short)
        jobs.clear()
        assert "contains a table with other settings" in coevo(
            "eval", file, "-n", "1", *short, code=2
        )
        assert jobs == {"remote-webshop-val-0": 1}


def test_finished_cells_that_other_code_played_are_named(coevo: Coevo) -> None:
    coevo("eval", write(FIVE + MODELS + TOY))
    config = Path("evals/mine/random-toy-val-0/config.json")
    write_json(config, read_json(config) | {"software": {"coevo_gym": "0"}, "git_commit": "abc"})
    for options in ((), ("--dry-run",)):
        text = coevo("eval", "mine.toml", *options)
        warning = "random on toy-val, seed 0: started with other code (abc) than you are running"
        assert text.count(warning) == 1


def test_settings_that_changed_are_named_and_nothing_is_lost(coevo: Coevo) -> None:
    file = write(FIVE + MODELS + TOY)
    coevo("eval", file)
    before = stored_bytes()
    text = coevo("eval", file, "-n", "4", code=2)
    assert "evals/mine contains a table with other settings; 6 of 6 cells differ." in text
    assert text.count("n_tasks: 5 there, 4 now (random-toy-val-0)") == 1
    assert "Choose another --name" in text
    assert "6 of 6 cells differ" in coevo("eval", file, "-n", "4", "--dry-run", code=2)
    assert stored_bytes() == before
    coevo("eval", file, "-n", "4", "--name", "shorter")
    assert table("shorter")["finished"]
    coevo("eval", file, "-n", "4", "--overwrite")
    assert len(EvalFolder.of("mine/random-toy-val-0").read_results()) == 4


def test_an_identical_evaluation_is_used_and_named(coevo: Coevo) -> None:
    coevo("eval", "toy", "--policy", "random", "-n", "5", "--name", "alone")
    coevo("eval", write(FIVE + MODELS + TOY, "first.toml"))
    text = coevo("eval", write(FIVE + MODELS + TOY, "second.toml"))
    assert "random on toy-val, seed 0: the identical evaluation evals/alone is used." in text
    assert Path("evals/second/reference-practice-2").is_symlink()
    used = {cell["used_from"] for cell in table("second")["cells"]}
    assert "evals/first/reference-practice-2" in used
    assert table("second")["results"] == table("first")["results"]
    assert (
        "the identical evaluation evals/alone is used." in Path("evals/second/table.md").read_text()
    )
    collection = RunCollection(Library(["second"]))
    detail = eval_detail(collection.get_evaluation("second~random-toy-val-0"))
    assert detail.used_from == "evals/alone"
    # A second start finds the links, and --overwrite plays all cells of this table.
    assert "the identical" in coevo("eval", "second.toml")
    coevo("eval", "second.toml", "--overwrite")
    assert not [cell for cell in table("second")["cells"] if cell["used_from"]]
    assert len(EvalFolder.of("alone").read_results()) == 5


def test_a_deleted_original_is_played_again(coevo: Coevo) -> None:
    coevo("eval", write(FIVE + MODELS + TOY, "first.toml"))
    coevo("eval", write(FIVE + MODELS + TOY, "second.toml"))
    text = coevo("runs", "rm", "first", "--yes")
    assert "evals/second/random-toy-val-0 is a link to it, and would have to be run again." in text
    assert not json.loads(coevo("runs", "list", "--json"))["evals"]
    coevo("eval", "second.toml")
    assert table("second")["finished"]
    assert not Path("evals/second/random-toy-val-0").is_symlink()


CHANGES: dict[str, Any] = {
    "seed": 9,
    "samples": 3,
    "n_tasks": 4,
    "tasks": "0",
    "max_steps": 1,
    "temperature": 0.5,
    "env": {"scheme": "all"},
    "weights": "0",
    "settings": {"tiny": {}},
    "versions": {"coevo_gym": "0.0.1"},
    "software": {"coevo_gym": "0"},
    "source": "other",
}


@pytest.mark.parametrize("key", CHANGES)
def test_an_evaluation_that_differs_in_anything_is_not_used(coevo: Coevo, key: str) -> None:
    coevo("eval", "toy", "--policy", "random", "-n", "5", "--name", "alone")
    alone, here = EvalFolder.of("alone"), EvalFolder(Path("evals/mine/cell"))
    wanted = alone.read_config()
    assert find_identical_evaluation(wanted, here) == alone
    assert find_identical_evaluation({**wanted, "git_commit": "another"}, here) == alone
    assert find_identical_evaluation({**wanted, key: CHANGES[key]}, here) is None


def test_an_unfinished_evaluation_is_not_used(coevo: Coevo) -> None:
    coevo("eval", "toy", "--policy", "random", "-n", "5", "--name", "alone")
    alone, here = EvalFolder.of("alone"), EvalFolder(Path("evals/mine/cell"))
    lines = alone.results.read_text().splitlines()
    alone.results.write_text("\n".join(lines[1:]) + "\n")
    assert find_identical_evaluation(alone.read_config(), here) is None


def test_a_model_on_a_hub_is_not_used_because_its_files_may_change(coevo: Coevo) -> None:
    coevo("eval", "toy", "--policy", "random", "-n", "5", "--name", "alone")
    alone, here = EvalFolder.of("alone"), EvalFolder(Path("evals/mine/cell"))
    hub = {**alone.read_config(), "model": "transformers:org/model", "weights": "", "settings": {}}
    write_json(alone.config, hub)
    assert find_identical_evaluation(hub, here) is None
    unknown = {**hub, "weights": "0", "software": {"coevo_gym": "1", "__main__": ""}}
    write_json(alone.config, unknown)
    assert find_identical_evaluation(unknown, here) is None
    endpoint = {**hub, "settings": {"endpoint": {"model": "m"}}}
    write_json(alone.config, endpoint)
    assert find_identical_evaluation(endpoint, here) == alone


def test_a_key_is_sent_only_with_permission(coevo: Coevo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "a-key-0123456789")
    monkeypatch.setattr(approvals, "_approved", set(approvals._approved))
    (coevo_home() / "approved.jsonl").unlink(missing_ok=True)
    with FakeOpenAI(answer=searching) as server:
        entry = endpoint_entry(server).replace('"none"', '"SOME_KEY"')
        file = write(FIVE + entry + MODELS + SHOP)
        text = coevo("eval", file, code=2)
        assert "send the key in SOME_KEY to http://127.0.0.1" in text
        assert server.keys == []
        coevo("eval", file, "-n", "1", "--set", "benchmark.max_steps=1", "--yes")
        assert set(server.keys) == {"a-key-0123456789"}


def test_paid_models_need_an_agreement(coevo: Coevo) -> None:
    with FakeOpenAI(answer=searching) as server:
        price = {"policy.endpoint.usd_per_million_prompt_tokens": 1.0}
        file = write(FIVE + endpoint_entry(server, **price) + MODELS + SHOP)
        text = coevo("eval", file, code=2)
        assert server.answered == 0
    assert "This evaluation queries a model that may cost money." in text
    assert "pass --yes" in text


MODEL = '[[models]]\npolicy = "random"\n'
BENCHMARK = '[[benchmarks]]\nbenchmark = "toy"\n'
MISTAKES = {
    "unknown key": (f"ntasks = 3\n{MODEL}{BENCHMARK}", "no key 'ntasks'. Did you mean 'n_tasks'?"),
    "key of the file in a model": (
        f"{MODEL}n_tasks = 3\n{BENCHMARK}",
        "models.1.n_tasks: 'n_tasks' is a key of the whole file. Move it above the first [sec",
    ),
    "unknown key of a model": (
        '[[models]]\npolcy = "random"\n' + BENCHMARK,
        "models.1.polcy: there is no key 'polcy'. Did you mean 'policy'?",
    ),
    "unknown key of a benchmark": (
        MODEL + '[[benchmarks]]\nbenchmark = "toy"\nsample = 3\n',
        "benchmarks.1.sample: there is no key 'sample'. Did you mean 'samples'?",
    ),
    "no model": (BENCHMARK, "mine.toml: models is missing"),
    "empty list of models": (f"models = []\n{BENCHMARK}", "models is empty. Add at least one"),
    "only a wrong model": (
        '[[models]]\npolcy = "random"\n',
        "no key 'polcy'. Did you mean 'policy'?; benchmarks is missing\n",
    ),
    "descending seeds": (
        f'seeds = "3-1"\n{MODEL}{BENCHMARK}',
        "seeds: seeds 3-1: give at least one seed, each only once, and ranges from the smaller",
    ),
    "no policy": (f'[[models]]\nname = "x"\n{BENCHMARK}', "policy = '' is not a model"),
    "unknown policy": (
        f'[[models]]\npolicy = "open:gpt"\n{BENCHMARK}',
        "policy = 'open:gpt' is not a model. Did you mean 'openai'? Set policy to "
        "transformers:MODEL",
    ),
    "unknown benchmark": (
        f'{MODEL}[[benchmarks]]\nbenchmark = "webshp"\n',
        "benchmarks.1: there is no benchmark 'webshp'. Did you mean 'webshop'?",
    ),
    "unknown split": (
        f'{MODEL}[[benchmarks]]\nbenchmark = "toy"\nsplit = "dev"\n',
        "benchmarks.1.split: Input should be 'train', 'val', 'test' or 'held_out', got 'dev'",
    ),
    "no tasks": (
        f'{MODEL}[[benchmarks]]\nbenchmark = "toy"\nn_tasks = 0\n',
        "benchmarks.1.n_tasks: Input should be greater than or equal to 1, got 0",
    ),
    "unknown panel": (
        f'{MODEL}[[benchmarks]]\nbenchmark = "webshop"\npanel = "webshop-product-50"\n',
        "There is no panel or file",
    ),
    "panel of another benchmark": (
        f'{MODEL}[[benchmarks]]\nbenchmark = "webshop"\npanel = "bfcl-base-200"\n',
        "the panel bfcl-base-200 is for bfcl, not for webshop. Set benchmark = 'bfcl'",
    ),
    "panel and split": (
        f'{MODEL}[[benchmarks]]\nbenchmark = "bfcl"\npanel = "bfcl-base-200"\nn_tasks = 3\n',
        "the panel 'bfcl-base-200' determines the tasks, so omit n_tasks, or omit panel",
    ),
    "unknown run": (
        f'[[models]]\nrun = "quikstart"\n{BENCHMARK}',
        "models.1 (quikstart): there is no run 'quikstart'.",
    ),
    "unknown setting": (
        f'[settings]\n"policy.endpont.base_url" = "x"\n{MODEL}{BENCHMARK}',
        "models.1 (random) on toy-val: There is no setting 'policy.endpont.base_url'",
    ),
    "setting of training": (
        f'[settings]\n"learner.lr" = 1\n{MODEL}{BENCHMARK}',
        "settings: 'learner.lr' does not affect an evaluation.",
    ),
    "setting with a key": (
        f'[settings]\n"evaluation.n_tasks" = 1\n{MODEL}{BENCHMARK}',
        "settings: set n_tasks instead of 'evaluation.n_tasks'.",
    ),
    "cap without prices": (
        '[[models]]\npolicy = "openai:x"\nset = { "policy.endpoint.max_usd_total" = 5.0 }\n'
        + BENCHMARK,
        "policy.endpoint.max_usd_total = 5.0 (from mine.toml): max_usd_total has no effect while",
    ),
    "two models of one name": (
        f"{MODEL}{MODEL}{BENCHMARK}",
        "two models have the name 'random'. Give one of them another `name`.",
    ),
    "seed twice": (
        f"seeds = [1, 1]\n{MODEL}{BENCHMARK}",
        "seeds: each seed may be given only once",
    ),
    "not a seed": (f'seeds = "1-x"\n{MODEL}{BENCHMARK}', "'1-x' is not a seed"),
    "bad name": (
        f'[[models]]\nname = "a b"\npolicy = "random"\n{BENCHMARK}',
        "models.1.name: a name takes letters, digits and . _ -, and begins with a letter or a "
        "digit, got 'a b'",
    ),
    "not TOML": ("models = [", "as TOML: "),
    "rows without a function": (
        f'{MODEL}[[benchmarks]]\nbenchmark = "rows.jsonl"\n',
        "benchmarks.1: benchmark = 'rows.jsonl' also needs verify",
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_in_the_file_is_named_with_its_place_and_a_remedy(
    coevo: Coevo, what: str
) -> None:
    text, message = MISTAKES[what]
    output = coevo("eval", write(text), code=2)
    assert "mine.toml" in output
    assert message in output
    assert not Path("evals").exists()


WRONG_MODELS = """
[[models]]
name = "typo"
policy = "open:gpt"
[[models]]
name = "empty"
policy = "openai:"
[[models]]
name = "gone"
policy = "transformers:./gone"
[[models]]
run = "quikstart"
[[models]]
name = "stile"
policy = "random"
set = { "policy.chat.stile" = "react" }
[[models]]
name = "learner"
policy = "random"
set = { "learner.lr" = 1 }
"""
MISTAKES_OF_MODELS = {
    "typo": "mine.toml, models.3 (typo): policy = 'open:gpt' is not a model. Did you mean 'openai'",
    "empty": "mine.toml, models.4 (empty): 'openai:' has no model name.",
    "gone": "mine.toml, models.5 (gone): No language model found at ./gone.",
    "quikstart": "mine.toml, models.6 (quikstart): there is no run 'quikstart'.",
    "stile": "models.7 (stile) on toy-val: There is no setting 'policy.chat.stile'",
    "learner": "models.8 (learner), set: 'learner.lr' does not affect an evaluation.",
}


def test_all_models_that_cannot_be_played_are_named_before_anything_is_played(
    coevo: Coevo,
) -> None:
    text = coevo("eval", write(FIVE + MODELS + WRONG_MODELS + TOY), code=2)
    assert text.startswith("ConfigError: ")
    assert len(text.splitlines()) == len(MISTAKES_OF_MODELS)
    for line, mistake in zip(text.splitlines(), MISTAKES_OF_MODELS.values(), strict=True):
        assert mistake in line
    assert not Path("evals").exists()


def test_a_model_that_cannot_be_played_does_not_hide_the_plan(coevo: Coevo) -> None:
    file = write(FIVE + MODELS + WRONG_MODELS + TOY)
    plan = json.loads(coevo("eval", file, "--dry-run", "--json", code=2))["cells"]
    assert len(plan) == 3 * (2 + len(MISTAKES_OF_MODELS))
    for cell in plan:
        mistake = MISTAKES_OF_MODELS.get(cell["row"], "")
        assert mistake in cell["problem"]
        assert (cell["total"] is None) is bool(mistake)
    text = coevo("eval", file, "--dry-run", code=2)
    assert "mine: 24 evaluations in evals/mine" in text
    assert all(text.count(mistake) == 1 for mistake in MISTAKES_OF_MODELS.values())
    assert not Path("evals").exists()


OPTIONS = {
    "--policy=random": "--policy is for a single evaluation. With a .toml file, set it in the file",
    "--split=test": "--split is for a single evaluation.",
    "--samples=2": "--samples is for a single evaluation.",
    "--panel=bfcl-base-200": "--panel is for a single evaluation.",
    "--trials=2": "--trials is for a single evaluation.",
    "--env=a=1": "--env is for a single evaluation.",
    "--by=goal": "--by is for a single evaluation.",
    "--name=a/b": "--name takes letters, digits",
    "--set=policy.chat.stile=react": "There is no setting 'policy.chat.stile'",
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_that_does_not_fit_a_file_is_refused(coevo: Coevo, option: str) -> None:
    assert OPTIONS[option] in coevo("eval", write(FIVE + MODELS + TOY), option, code=2)
    assert not Path("evals").exists()


def test_a_missing_file_is_reported_with_a_similar_one(coevo: Coevo) -> None:
    write(FIVE + MODELS + TOY, "models.toml")
    assert "There is no file 'model.toml'. Did you mean 'models.toml'?" in coevo(
        "eval", "model.toml", code=2
    )


def test_a_single_evaluation_takes_n_but_no_dry_run(coevo: Coevo) -> None:
    coevo("eval", "toy", "--policy", "random", "-n", "3", "--name", "three")
    assert len(EvalFolder.of("three").read_results()) == 3
    assert "--dry-run needs a .toml file" in coevo(
        "eval", "toy", "--policy", "random", "--dry-run", code=2
    )
    assert "A panel is always played in full, so -n 3" in coevo(
        "eval", "bfcl", "--policy", "random", "--panel", "bfcl-base-200", "-n", "3", code=2
    )
    assert "evals/three contains a single evaluation" in coevo(
        "eval", write(FIVE + MODELS + TOY), "--name", "three", code=2
    )


def test_the_arms_of_a_run_are_models_of_a_table(coevo: Coevo, finished: Path) -> None:
    shutil.copytree(finished, "runs/toy-run")
    arms = "".join(
        f'[[models]]\nrun = "toy-run"\npolicy = "{arm}"\n' for arm in ("static", "warm-up")
    )
    coevo("eval", write(FIVE + arms + MODELS + TOY))
    rows = ["toy-run-static", "toy-run-warm-up", "random", "reference"]
    assert table()["rows"] == rows
    assert table()["finished"]
    configs = [EvalFolder.of(f"mine/{row}-practice-1").read_config() for row in rows]
    assert len({config["tasks"] for config in configs}) == 1  # all rows play the same tasks
    assert [config["seed"] for config in configs] == [1] * 4
    assert configs[0]["weights"] not in ("", configs[1]["weights"])
    assert "has no policy 'statik'. Did you mean 'static'?" in coevo(
        "eval", write(arms.replace("static", "statik") + TOY, "wrong.toml"), code=2
    )


def test_n_also_limits_the_tasks_of_a_run(coevo: Coevo, finished: Path) -> None:
    shutil.copytree(finished, "runs/toy-run")
    coevo("eval", "toy-run", "-n", "3", "--name", "three")
    assert len(EvalFolder.of("three").read_results()) == 3


def test_rows_and_their_functions_are_a_column(
    coevo: Coevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "_approved", set(approvals._approved))
    Path("files").mkdir()
    Path("files/judge.py").write_text(
        "def check(row, answer):\n    return answer == row['answer']\n"
    )
    rows = [
        {"id": f"sum-{n}", "prompt": f"What is {n} + 3?", "answer": "b", "choices": ["a", "b"]}
        for n in range(40)
    ]
    Path("files/sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    column = (
        '[[benchmarks]]\nbenchmark = "sums.jsonl"\nverify = "judge.py:check"\nsplit = "train"\n'
    )
    file = write(FIVE + '[[models]]\npolicy = "random"\n' + column, "files/rows.toml")
    assert "run the Python file" in coevo("eval", file, code=2)  # the file may be somebody else's
    coevo("eval", file, "--yes")
    assert table("rows")["columns"] == ["sums-train"]
    assert len(EvalFolder.of("rows/random-sums-train-0").read_results()) == 5
