"""Panels made from installed data: how they are drawn, listed, verified, exported and cited."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import coevo_gym
from coevo_gym.core.benchmark import get_benchmark, panel_entry_of, panel_task_of
from coevo_gym.core.errors import (
    BenchmarkNotInstalled,
    ConfigError,
    TaskError,
)
from coevo_gym.core.panel import Citation, Panel
from coevo_gym.core.stats import wilson_interval
from coevo_gym.core.task import Task
from coevo_gym.core.waiting import send_progress_to
from coevo_gym.envs.alfworld import data as alfworld_data
from coevo_gym.envs.rows import from_rows
from coevo_gym.runs.panels.citing import check_citation
from coevo_gym.runs.panels.exporting import ExportFormat, export_panel, find_instructions
from coevo_gym.runs.panels.making import ListLine, make_panel, read_list
from coevo_gym.runs.panels.panel_files import (
    SHIPPED,
    check_panel,
    find_panel,
    shipped_names,
    tasks_of_panel,
)
from coevo_gym.runs.panels.shipped import RECIPES, PanelRecipe
from tests.quick import sample_params
from tests.runs.conftest import ROOT, Coevo
from tests.webshop import handmade

BUILTIN = {"subset": "builtin"}


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    return tmp_path


def code_of_the_page() -> dict[str, Any]:
    """The functions of docs/panels.md that compute hashes without this package."""
    page = (ROOT / "docs" / "panels.md").read_text(encoding="utf-8")
    scope: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        if "def " in block:
            exec(compile(block, "docs/panels.md", "exec"), scope)
    return scope


PAGE = code_of_the_page()
sha256 = PAGE["sha256"]


def ids(panel: Panel) -> list[str]:
    return [task.id for task in panel.tasks]


def make(**options: Any) -> Panel:
    return make_panel("webshop", **{"split": "val", "env": BUILTIN, **options})


@cache
def everything() -> Panel:
    """All validation tasks of the built-in shop."""
    return make()


def list_lines(*texts: str) -> list[ListLine]:
    return [ListLine(text, f"line {number}") for number, text in enumerate(texts, start=1)]


# Making


def test_a_panel_lists_the_tasks_of_a_split_in_their_order() -> None:
    panel = everything()
    tasks = coevo_gym.tasks("webshop", "val", "builtin")
    assert ids(panel) == [task.name for task in tasks]
    assert (panel.name, panel.benchmark, panel.split) == (
        f"webshop-val-{len(tasks)}",
        "webshop",
        "val",
    )
    assert tasks_of_panel(panel) == tuple(tasks)  # with their solutions
    assert check_panel(panel).data == ()


def test_a_draw_takes_the_tasks_with_the_smallest_hashes() -> None:
    names, draw = ids(everything()), ids(make(size=20, seed=3))
    smallest = sorted(names, key=lambda id: hashlib.sha256(f"3 {id}".encode()).hexdigest())
    assert draw == [id for id in names if id in smallest[:20]]
    assert set(draw) < set(ids(make(size=21, seed=3)))
    assert draw != ids(make(size=20, seed=4))


def test_a_panel_names_the_smallest_subset_that_has_its_tasks() -> None:
    assert everything().env == BUILTIN
    assert make(env={}) == make(env={"subset": "synthetic"}) == everything()
    entries = make_panel("bfcl", split="test", where={"category": "base"})
    assert entries.env == {"subset": "base"}
    assert entries.hash == make_panel("bfcl", split="test", env={"subset": "base"}).hash
    assert make_panel("bfcl", split="test", env={"scheme": "all200"}).env == {"scheme": "all200"}


def test_the_tasks_of_a_list_keep_its_order(tmp_path: Path) -> None:
    names = ids(everything())
    goal = str(everything().tasks[5].place["goal"])
    task = get_benchmark("webshop").tasks("val", "builtin")[7]
    file = tmp_path / "list.txt"
    lines = [names[9], f"{goal}\r", names[2].partition("/")[2], "", json.dumps({"id": names[0]})]
    file.write_text("\n".join(["\ufeff" + lines[0], *lines[1:], task.id]))
    panel = make(lines=read_list(file))
    assert ids(panel) == [names[9], names[5], names[2], names[0], names[7]]
    assert panel.tasks[0] == everything().tasks[9]
    fewer = make(lines=read_list(file), size=2, seed=1)
    assert ids(fewer) == [id for id in ids(panel) if id in ids(fewer)]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"webshop/builtin/synthetic/99999\n", "line 1: .* is none of the 401 chosen val tasks"),
        (b"\n\nnowhere/else\n", "line 3: 'nowhere/else' is none of"),
        (
            b"{first}\n{first}\n",
            "line 2 repeats the task .*, which is already listed in .*, line 1",
        ),
        (b"{asin}\n", "line 1: .* matches [0-9]+ tasks, such as .* and .*--where"),
        (b"a\xff\n", "line 1: the line is not UTF-8"),
        (b'{first}\n{"id": 3}\n', "line 2: its key 'id' must be the name of a task, got 3"),
        (b'{"id": "a"\n', "line 1 is not valid JSON"),
        (b"\n \n", "contains no tasks"),
    ],
)
def test_a_list_with_a_bad_line_is_rejected(tmp_path: Path, content: bytes, problem: str) -> None:
    panel, file = everything(), tmp_path / "list.txt"
    products = [task.scenario for task in panel.tasks]
    asin = next(asin for asin in products if products.count(asin) > 1)
    content = content.replace(b"{first}", panel.tasks[0].id.encode())
    file.write_bytes(content.replace(b"{asin}", asin.encode()))
    with pytest.raises(TaskError, match=rf"list\.txt.*{problem}"):
        make(lines=read_list(file))


def test_a_listed_task_of_another_split_is_found_for_the_message() -> None:
    other = coevo_gym.tasks("webshop", "test", "builtin")[0].name
    with pytest.raises(TaskError, match=r"line 1: .* elsewhere: pass --split test\."):
        make(lines=list_lines(other))
    entry = coevo_gym.tasks("bfcl", "test")[0].name
    with pytest.raises(TaskError, match=r"pass --split test\.$"):
        make_panel("bfcl", split="val", lines=list_lines(entry))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"size": 402}, "size must be between 1 and 401, got 402"),
        ({"size": 0}, "size must be between 1 and 401, got 0"),
        ({"env": {"max_steps": 3}}, "A panel has no max_steps. It belongs to the evaluation"),
        ({"env": {"colour": "red"}}, "colour"),
        ({"where": {"colour": "red"}}, "have no 'colour'. They have: asin, goal, subset"),
        ({"where": {"subset": "human"}}, "in its panel entry"),
        ({"name": "Two words"}, "The panel's name: "),
        ({"split": "dev"}, "Unknown split 'dev'"),
        ({"env": {"subset": "dev"}}, "no subset 'dev'"),
    ],
)
def test_options_that_cannot_be_used_are_rejected(options: dict[str, Any], problem: str) -> None:
    with pytest.raises((ConfigError, TaskError), match=problem):
        make(**options)


_MAKE = """
import sys
from coevo_gym.runs.panels.making import make_panel
for name, split, env in (("webshop", "test", {"subset": "builtin"}), ("bfcl", "val", {})):
    sys.stdout.buffer.write(make_panel(name, split=split, env=env, size=20).to_json().encode())
"""


def test_a_panel_is_the_same_in_every_home_locale_and_process(
    tmp_path: Path, coevo_home: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "bfcl").symlink_to(coevo_home / "bfcl")
    own = {"PYTHONHASHSEED": "7", "LC_ALL": "de_DE.UTF-8", "COEVO_HOME": str(home)}
    assert os.environ.get("PYTHONHASHSEED") != "7"
    there = subprocess.run(
        [sys.executable, "-c", _MAKE], env={**os.environ, **own}, capture_output=True, check=True
    ).stdout
    here = make(split="test", size=20).to_json() + make_panel("bfcl", size=20).to_json()
    assert there == here.encode()


# Content


def change_word(task: Task) -> Task:
    """Return a task with another last word in its instruction."""
    return task.model_copy(update={"instruction": f"{task.instruction.rpartition(' ')[0]} word"})


@pytest.mark.parametrize("benchmark", ["webshop", "bfcl", "alfworld"])
def test_a_changed_word_changes_the_hash(benchmark: str) -> None:
    source = get_benchmark(benchmark)
    task = source.tasks("val")[0]
    assert panel_task_of(source, change_word(task)).hash != panel_task_of(source, task).hash


def test_evolved_tasks_have_an_entry_too() -> None:
    shop = get_benchmark("webshop")
    task = shop.tasks("train", "builtin")[0].model_copy(update={"origin": "evolved", "name": ""})
    assert panel_entry_of(shop, task).place == {}
    assert panel_task_of(shop, task).hash != panel_task_of(shop, change_word(task)).hash


def test_a_benchmark_without_entries_of_its_own_has_panels() -> None:
    panel = make_panel("toy", split="test")
    assert panel.data == {}
    assert [task.name for task in tasks_of_panel(panel)] == ids(panel)
    assert (
        make_panel("toy", split="test", lines=list_lines(ids(panel)[1])).tasks == panel.tasks[1:2]
    )


def test_appworld_panels_contain_ids_and_hashes(appworld_root: Path) -> None:
    panel = make_panel("appworld", split="val", size=4)
    assert panel.env == BUILTIN
    assert panel.data == {"data": appworld_root.name}
    tasks = tasks_of_panel(panel)
    for entry, task in zip(panel.tasks, tasks, strict=True):
        folder = appworld_root / "data" / "tasks" / str(entry.place["task"])
        assert entry.parts == PAGE["appworld_parts"](folder)
        assert task.instruction not in panel.to_json()


ROWS = [
    {"id": name, "prompt": f"What is {n} + {n}?", "answer": str(2 * n), "split": "test"}
    for n, name in enumerate("abc")
]


def is_right(row: dict[str, Any], answer: str) -> bool:
    return answer == row["answer"]


def test_rows_are_found_by_id_and_hashed_by_their_fields() -> None:
    rows = from_rows(ROWS, is_right, name="mine")
    panel = make_panel("mine", split="test", lines=list_lines("c", "a"))
    assert ids(panel) == ["mine/c", "mine/a"]
    assert panel.tasks[1].place == {"row": "a"}
    assert panel.tasks[1].parts == PAGE["row_parts"](ROWS[0])
    assert panel.data["rows"] == rows.content
    again = from_rows([*ROWS, {"prompt": "More?"}], is_right, name="again")
    assert make_panel("again", split="test").tasks[0].hash == panel.tasks[1].hash
    assert again.content != rows.content


# Verifying

WISH = handmade.ATTRIBUTES["M000000001"]


def write_shop(folder: Path, **wish: Any) -> None:
    """Write the files of a small shop whose products ask for something."""
    asins = [item["asin"] for item in handmade.ITEMS]
    attributes = {asin: WISH for asin in asins} | {"M000000001": {**WISH, **wish}}
    (folder / "items_shuffle_1000.json").write_text(json.dumps(handmade.ITEMS))
    (folder / "items_ins_v2_1000.json").write_text(json.dumps(attributes))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a small official shop, in use for this test."""
    folder = tmp_path / "shop"
    folder.mkdir()
    write_shop(folder)
    monkeypatch.setenv("COEVO_WEBSHOP_DATA", str(folder))
    return folder


def shop_panel() -> Panel:
    """A panel of all goals in the split of the first handmade product."""
    goal = get_benchmark("webshop").split_of("M000000001")
    return make_panel("webshop", split=goal, name="small")


def test_verify_names_the_task_whose_content_has_changed(
    shop: Path, tmp_path: Path, coevo: Coevo
) -> None:
    panel = shop_panel()
    (tmp_path / "small.json").write_text(panel.to_json())
    text = coevo("panel", "verify", "small.json")
    assert f"{len(panel.tasks)} of {len(panel.tasks)} tasks are as in the panel" in text
    assert "Data differs" not in text
    write_shop(shop, instruction="Find me heavy duty cups")
    check = check_panel(panel)
    changed = [task.id for task in panel.tasks if task.scenario == "M000000001"]
    assert [(one.id, one.parts) for one in check.differences] == [
        (id, ("instruction",)) for id in changed
    ]
    with pytest.raises(ConfigError, match=rf"{changed[0]} .* has a different instruction"):
        tasks_of_panel(panel)
    text = coevo("panel", "verify", "small.json", code=1)
    assert f"{changed[0]} has a different instruction." in text
    assert "Data differs: products is" in text
    answer = json.loads(coevo("panel", "verify", "small.json", "--json", code=1))
    assert answer["differences"][0] == {
        "id": changed[0],
        "missing": False,
        "parts": ["instruction"],
    }
    assert [one["name"] for one in answer["data_differences"]] == ["products"]
    texts, reason = find_instructions(panel)
    assert not set(texts) & set(changed)
    assert f"{len(changed)} tasks differ" in reason
    with pytest.raises(ConfigError, match="has a different instruction"):
        list(export_panel(panel, ExportFormat.JSONL))


def test_verify_names_a_task_that_is_missing(shop: Path) -> None:
    panel = shop_panel()
    first = panel.tasks[0]
    extra = first.model_copy(update={"id": "webshop/8/synthetic/999"})
    larger = panel.model_copy(update={"tasks": (*panel.tasks, extra)})
    (difference,) = check_panel(larger).differences
    assert (difference.id, str(difference)) == (extra.id, "is missing")
    moved = first.model_copy(update={"place": {"goal": 1}})
    other = panel.model_copy(update={"tasks": (moved, *panel.tasks[1:])})
    assert check_panel(other).differences[0].parts == ("place",)


def test_other_title_nouns_are_reported_but_the_tasks_are_the_same(shop: Path) -> None:
    panel = shop_panel()
    (shop / "title_nouns_x.json").write_text(json.dumps({"M000000001": ["stone"]}))
    check = check_panel(panel)
    assert not check.differences
    assert [one.name for one in check.data] == ["title nouns"]
    assert shop_panel().hash != panel.hash


def test_a_panel_whose_data_is_not_installed_exits_with_3(coevo: Coevo) -> None:
    text = coevo("panel", "verify", "webshop-official-500", code=3)
    assert "coevo install webshop" in text
    assert "catalogue is builtin here and 1k in the panel" in coevo(
        "panel", "verify", "webshop-product-500", code=3
    )
    assert "coevo install alfworld" in coevo("panel", "verify", "alfworld-valid-seen-140", code=3)
    unknown = find_panel("bfcl-base-200").model_copy(update={"benchmark": "elsewhere"})
    with pytest.raises(
        BenchmarkNotInstalled, match="the benchmark 'elsewhere', which is not installed"
    ):
        check_panel(unknown)


def test_long_work_reports_its_progress() -> None:
    reports: list[tuple[str, int, int]] = []
    with send_progress_to(lambda *report: reports.append(report)):
        check_panel(find_panel("bfcl-all-800"))
        assert reports == [("hashing tasks", 500, 800)]
        make_panel("bfcl", split="test", env={"scheme": "all200"})
    assert reports == [("hashing tasks", 500, 800)] * 2


# Shipped panels


def test_the_shipped_panels_are_those_of_the_recipes() -> None:
    assert shipped_names() == sorted(recipe.name for recipe in RECIPES)
    page = (ROOT / "docs" / "panels.md").read_text(encoding="utf-8")
    for name in shipped_names():
        panel = find_panel(name)
        assert panel.name == name
        assert (SHIPPED / f"{name}.json").read_bytes() == panel.to_json().encode()
        assert panel.benchmark != "appworld"
        row = f"| `{name}` | {len(panel.tasks)} | {panel.split} | `{panel.hash[:12]}` |"
        assert row in page


_HEX = re.compile(r"[0-9a-f]{64}")
_PLACES = {
    "game": re.compile(r"json_2\.1\.1/valid_\w+/[\w-]+/trial_T[0-9_]+/game\.tw-pddl"),
    "asin": re.compile(r"[0-9A-Z]{10}"),
    "goal": re.compile(r"[0-9]+"),
    "subset": re.compile(r"synthetic"),
    "category": re.compile(r"base|miss_func|miss_param|long_context"),
    "entry": re.compile(r"multi_turn_[a-z_]+_[0-9]+"),
}
_IDS = re.compile(
    r"alfworld/valid_\w+/[\w-]+/trial_T[0-9_]+|webshop/1k/synthetic/[0-9]+|bfcl/multi_turn_\w+"
)


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_panel_has_no_text_of_its_tasks(name: str) -> None:
    for row in json.loads((SHIPPED / f"{name}.json").read_bytes())["tasks"]:
        assert row.keys() == {"id", "hash", "scenario", "place", "parts"}
        assert _IDS.fullmatch(row["id"])
        assert re.fullmatch(r"FloorPlan[0-9]+|[0-9A-Z]{10}|multi_turn_[0-9]+", row["scenario"])
        assert all(_PLACES[key].fullmatch(str(value)) for key, value in row["place"].items())
        assert all(_HEX.fullmatch(value) for value in (row["hash"], *row["parts"].values()))


def remake(recipe: PanelRecipe) -> None:
    """Check that a recipe still makes the shipped panel, and that others' lists lead back to it."""
    panel = recipe.make()
    assert panel.to_json() == (SHIPPED / f"{recipe.name}.json").read_text(encoding="utf-8")
    assert not check_panel(panel).differences
    form = {"alfworld": ExportFormat.ALFWORLD, "webshop": ExportFormat.WEBSHOP}
    lines = [*export_panel(panel, form.get(recipe.benchmark, ExportFormat.JSONL))]
    if recipe.benchmark == "alfworld":
        lines = [f"/data/alfworld/{line}" for line in lines]
        options: dict[str, Any] = {}
    else:
        options = {"env": recipe.env, "where": recipe.where}
    texts = [json.loads(line)["id"] if line[0] == "{" else line for line in lines]
    again = make_panel(recipe.benchmark, split=recipe.split, lines=list_lines(*texts), **options)
    assert again.hash == panel.hash


def of(benchmark: str, every: int = 1) -> Any:
    """The recipes of a benchmark, of which only every n-th is fast."""
    recipes = [recipe for recipe in RECIPES if recipe.benchmark == benchmark]
    return pytest.mark.parametrize("recipe", sample_params(recipes, every, lambda one: one.name))


@of("bfcl")
def test_the_shipped_bfcl_panels_can_be_made_again(recipe: PanelRecipe) -> None:
    remake(recipe)


@of("webshop", every=2)
def test_the_shipped_webshop_panels_can_be_made_again(
    official_data: Path, recipe: PanelRecipe
) -> None:
    remake(recipe)


@of("alfworld", every=3)
def test_the_shipped_alfworld_panels_can_be_made_again(
    official_games: Path, recipe: PanelRecipe
) -> None:
    remake(recipe)


def test_hashes_of_bfcl_can_be_computed_from_the_official_files() -> None:
    from coevo_gym.envs.bfcl.engine.wheel import require_package

    data = require_package() / "data"
    for kind in ("base", "miss_func", "long_context"):
        name = f"BFCL_v4_multi_turn_{kind}.json"
        entries = (data / name).read_text().splitlines()
        answers = (data / "possible_answer" / name).read_text().splitlines()
        rows = {
            row["place"]["entry"]: row["parts"]
            for row in json.loads((SHIPPED / "bfcl-all-800.json").read_bytes())["tasks"]
        }
        for line, answer in zip(entries, answers, strict=True):
            entry = json.loads(line)
            assert rows[entry["id"]] == PAGE["bfcl_parts"](entry, json.loads(answer), kind)


def test_hashes_of_webshop_fit_the_goals_of_the_original(official_data: Path) -> None:
    import gzip

    file = official_data / "goals_synthetic_seed0.jsonl.gz"
    if not file.is_file():
        pytest.skip("the goals of the original are not there")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        goals = [json.loads(line) for line in lines]
    for name in ("webshop-official-500", "webshop-product-500"):
        for task in find_panel(name).tasks:
            goal = goals[task.place["goal"]]
            assert task.place["asin"] == goal["asin"]
            assert task.parts == PAGE["webshop_parts"](goal)


def test_a_changed_alfworld_game_is_named(
    official_games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = find_panel("alfworld-valid-unseen-134")
    game, other = panel.tasks[3].id, panel.tasks[8].id
    folder = tmp_path / "games"
    folder.mkdir()
    file = folder / alfworld_data.STORE
    shutil.copyfile(official_games / alfworld_data.STORE, file)
    with closing(sqlite3.connect(file)) as connection, connection:
        change = "UPDATE entries SET task = task || ' now' WHERE id = ?"
        connection.execute(change, (game.partition("/")[2],))
        moved = (
            "UPDATE problems SET packed = (SELECT packed FROM problems WHERE id = ?) WHERE id = ?"
        )
        connection.execute(moved, (game.partition("/")[2], other.partition("/")[2]))
    monkeypatch.setenv("COEVO_ALFWORLD_DATA", str(folder))
    differences = {one.id: one.parts for one in check_panel(panel).differences}
    assert differences == {game: ("instruction",), other: ("problem",)}


@pytest.mark.slow
def test_alfworld_hashes_fit_the_games_in_any_order(
    official_games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.conftest import OFFICIAL_ALFWORLD

    assert OFFICIAL_ALFWORLD is not None
    games = [*alfworld_data.read_official_games(OFFICIAL_ALFWORLD)]
    rows = {game.entry.id: game for game in games}
    for task in find_panel("alfworld-valid-seen-140").tasks:
        entry, _, grammar, problem = rows[task.id.partition("/")[2]]
        words = grammar.replace(alfworld_data.UNKNOWN, entry.task)
        game = {"grammar": words, "pddl_problem": problem}
        assert task.parts == PAGE["alfworld_parts"](game)
    alfworld_data.write_store(tmp_path / alfworld_data.STORE, reversed(games))
    monkeypatch.setenv("COEVO_ALFWORLD_DATA", str(tmp_path))
    recipe = next(recipe for recipe in RECIPES if recipe.name == "alfworld-valid-unseen-134")
    assert recipe.make().to_json().encode() == (SHIPPED / f"{recipe.name}.json").read_bytes()


# The command


def test_panels_are_listed_and_shown_without_their_data(coevo: Coevo) -> None:
    rows = json.loads(coevo("panel", "list", "--json"))
    assert [row["name"] for row in rows] == shipped_names()
    assert {row["name"]: row["n_tasks"] for row in rows}["bfcl-held-out-160"] == 160
    text = coevo("panel", "list")
    assert all(row["hash"][:12] in text for row in rows)
    text = coevo("panel", "show", "webshop-product-500", "--limit", "2")
    assert "Instructions are missing. " in text
    assert "2 of 500 tasks" in text
    panel = json.loads(coevo("panel", "show", "webshop-product-500", "--json"))
    assert panel["tasks"][0]["instruction"] == ""
    assert panel["tasks"][0]["parts"] == dict(find_panel("webshop-product-500").tasks[0].parts)


def test_show_fills_in_instructions_of_the_installed_data(coevo: Coevo) -> None:
    panel = json.loads(coevo("panel", "show", "bfcl-base-200", "--limit", "1", "--json"))
    (task,) = panel["tasks"]
    assert task["instruction"] == coevo_gym.tasks("bfcl", "test")[0].instruction or (
        task["instruction"].startswith("Move 'final_report.pdf'")
    )


def test_make_writes_a_file_that_verify_and_export_read(coevo: Coevo, tmp_path: Path) -> None:
    options = ("webshop", "--subset", "builtin", "--size", "5", "--name", "five")
    text = coevo("panel", "make", *options)
    panel = find_panel(str(tmp_path / "five.json"))
    assert f"five.json: {panel.reference}, 5 tasks" in text
    assert panel == make(size=5, name="five")
    assert "five.json already exists" in coevo("panel", "make", *options, code=2)
    answer = json.loads(coevo("panel", "make", *options, "--overwrite", "--json"))
    assert (answer["hash"], answer["file"]) == (panel.hash, "five.json")
    coevo("panel", "export", "five.json", "--for", "webshop", "--out", "positions.txt")
    positions = [str(task.place["goal"]) for task in panel.tasks]
    assert (tmp_path / "positions.txt").read_text().split() == positions
    text = coevo("panel", "make", "webshop", "--list", "positions.txt", "--name", "again")
    assert f"again@{panel.hash[:12]}" in text
    text = coevo("panel", "export", "five.json", "--for", "jsonl")
    assert "Before you share these tasks (webshop)" in text
    lines = [line for line in text.splitlines() if line.startswith("{")]
    for line, task in zip(lines, panel.tasks, strict=True):
        row = json.loads(line)
        assert {name: sha256(part) for name, part in row["content"].items()} == task.parts
    assert sha256({name: sha256(part) for name, part in row["content"].items()}) == row["hash"]
    one = json.loads(coevo("panel", "make", "webshop", "--id", positions[3], "--json"))
    assert find_panel(str(tmp_path / one["file"])).tasks == panel.tasks[3:4]


def test_mistakes_are_explained(coevo: Coevo, tmp_path: Path) -> None:
    assert "Did you mean 'bfcl-base-200'?" in coevo("panel", "show", "bfcl-base-20", code=2)
    assert "no such file" in coevo("panel", "make", "bfcl", "--list", "x", code=2).lower()
    assert "Pass --id or --list" in coevo("panel", "make", "bfcl", "--list", "x", "--id=y", code=2)
    assert "--where must have" in coevo("panel", "make", "bfcl", "--where", "x", code=2)
    assert "has no argument 'x'" in coevo("panel", "make", "bfcl", "--env", "x=1", code=2)
    assert "Name a panel" in coevo("panel", "verify", code=2)
    text = coevo("panel", "export", "bfcl-base-200", "--for", "alfworld", code=2)
    assert "multi_turn_base_0 has no game" in text
    assert "pass --verify" in coevo("panel", "make", "rows.jsonl", code=2)
    edited = json.loads((SHIPPED / "bfcl-base-200.json").read_bytes())
    edited["tasks"][7]["parts"]["answer"] = "0" * 64
    (tmp_path / "edited.json").write_text(json.dumps(edited))
    text = coevo("panel", "verify", "edited.json", code=2)
    assert "the hash of task bfcl/multi_turn_base_7 must be" in text


def test_positions_of_two_kinds_of_goals_are_no_list() -> None:
    panel = everything()
    human = panel.tasks[0].model_copy(update={"place": {"goal": 1, "subset": "human"}})
    mixed = panel.model_copy(update={"tasks": (human, panel.tasks[1])})
    with pytest.raises(ConfigError, match=r"several kinds \(human, synthetic\)"):
        list(export_panel(mixed, ExportFormat.WEBSHOP))


def test_a_panel_of_rows_is_verified_against_their_file(coevo: Coevo, tmp_path: Path) -> None:
    def write(rows: list[dict[str, Any]]) -> None:
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    write(ROWS)
    (tmp_path / "mine.py").write_text("def check(row, answer):\n    return answer == 'x'\n")
    judge = ("--verify", "mine.py:check")
    coevo("panel", "make", "rows.jsonl", *judge, "--split", "test", "--name", "rows")
    name = find_panel(str(tmp_path / "rows.json")).benchmark
    assert "3 of 3 tasks" in coevo("panel", "verify", "rows.json")
    sys.modules.pop(f"coevo_gym.envs.rows.registration_of_{name}")
    write([*ROWS[:2], {**ROWS[2], "answer": "7"}])
    text = coevo("panel", "verify", "rows.json", "--rows", "rows.jsonl", *judge, code=1)
    assert f"{name}/c has a different row." in text
    assert "pass both --rows" in coevo("panel", "show", "rows.json", *judge, code=2)


# Citations


def cite(panel: Panel, share: float, n: int, **fields: Any) -> Citation:
    low, high = wilson_interval(share * n, n)
    values: dict[str, Any] = {
        "panel": panel.name,
        "panel_hash": panel.hash[:12],
        "success": 100 * share,
        "low": 100 * low,
        "high": 100 * high,
        "tasks": n,
        "samples": 1,
        "protocol": "0123456789ab",
        "policy": "random",
        "version": "0.1.0",
    }
    return Citation.parse(str(Citation(**{**values, **fields})))


def wrong_parts(citation: Citation, panel: Panel) -> list[str]:
    return [part.part for part in check_citation(citation, panel) if part.holds is False]


def test_true_citations_have_no_wrong_part() -> None:
    panel = find_panel("alfworld-valid-seen-140")
    for tasks in (1, 3, 127, 140):
        for successes in range(tasks + 1):
            assert wrong_parts(cite(panel, successes / tasks, tasks), panel) == []
        assert wrong_parts(cite(panel, 0.4321, tasks, samples=8), panel) == []


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"panel_hash": "0" * 12}, ["panel"]),
        ({"low": 36.0}, ["interval"]),
        ({"high": 71.9}, ["interval"]),
        ({"success": 50.4, "low": 42.2, "high": 58.5}, ["success"]),
        ({"tasks": 142}, ["tasks"]),
        ({"tasks": 0}, ["success", "interval", "tasks"]),
        ({"success": 150.0}, ["success", "interval"]),
    ],
)
def test_a_part_that_does_not_fit_is_wrong(fields: dict[str, Any], wrong: list[str]) -> None:
    panel = find_panel("alfworld-valid-seen-140")
    assert wrong_parts(cite(panel, 0.5, 140, **fields), panel) == wrong


def test_verify_checks_a_citation(coevo: Coevo, tmp_path: Path) -> None:
    panel = find_panel("alfworld-valid-seen-140")
    line = str(cite(panel, 0.5, 140))
    assert "It is 70 of 140." in coevo("panel", "verify", "--cite", line)
    parts = json.loads(coevo("panel", "verify", "--cite", line, "--json"))
    assert {part["part"]: part["holds"] for part in parts} == {
        **dict.fromkeys(("panel", "success", "interval", "tasks"), True),
        **dict.fromkeys(("samples", "protocol", "policy", "version"), None),
    }
    other = line.replace(panel.hash[:12], "0" * 12)
    assert "other tasks or other data" in coevo("panel", "verify", "--cite", other, code=1)
    mine = panel.model_copy(update={"name": "mine"})
    (tmp_path / "mine.json").write_text(mine.to_json())
    line = str(cite(mine, 0.5, 140))
    assert "No shipped panel is named 'mine'" in coevo("panel", "verify", "--cite", line, code=2)
    coevo("panel", "verify", "mine.json", "--cite", line)
    assert "is not the last line" in coevo("panel", "verify", "--cite", "50 %", code=2)
