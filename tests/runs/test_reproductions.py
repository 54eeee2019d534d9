"""Reproductions: recipes beside their presets, the command, and whole runs with their report."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.panel import Citation
from coevo_gym.runs.config import arm_configs, load_config, preset_names
from coevo_gym.runs.config.sources import PRESETS
from coevo_gym.runs.panels.known import known_groups
from coevo_gym.runs.panels.panel_files import find_panel, shipped_names
from coevo_gym.runs.planning.plan import settings_of
from coevo_gym.runs.reproductions import (
    ComparedSetting,
    SpreadVerdict,
    find_recipe,
    judge_result,
    recipe_names,
    tiny_settings,
)
from coevo_gym.store.folder import RunFolder
from coevo_gym.view.export.reproduction import read_reproduction
from tests.agents.tiny_llama import make_tiny_llama
from tests.conftest import USERS_HOME
from tests.runs.conftest import Child, Coevo
from tests.runs.test_train import NewChild, assert_same

NUMBERS = find_recipe("grpo-alfworld-1.5b").numbers("alfworld-valid-seen-140")


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    return tmp_path


def compared(name: str) -> list[ComparedSetting]:
    recipe = find_recipe(name)
    config = load_config(recipe.preset, environ={}).config
    (arm,) = arm_configs(config).values()
    return list(recipe.compare(settings_of(config, arm)))


def test_each_recipe_has_a_preset_and_each_peer_preset_a_recipe() -> None:
    presets = [find_recipe(name).preset for name in recipe_names()]
    assert sorted(presets) == [name for name in preset_names() if name.startswith("peer_")]


@pytest.mark.parametrize("name", recipe_names())
def test_a_preset_differs_from_its_original_only_where_the_recipe_says_why(name: str) -> None:
    rows = compared(name)
    assert len(rows) >= 40
    assert not [row for row in rows if row.differs and not row.why]
    assert not [row for row in rows if row.key and row.differs], "a value differs"
    assert not [row for row in rows if not row.differs and row.why]


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_names_known_groups_and_panels_that_its_preset_plays(name: str) -> None:
    recipe = find_recipe(name)
    evaluation = load_config(recipe.preset, environ={}).config.evaluation
    played = {str(evaluation.panel), *evaluation.final}
    assert recipe.published.keys() <= played <= {*shipped_names()}
    assert {*recipe.published.values()} <= {group.group for group, _ in known_groups()}
    for panel in recipe.published:
        benchmarks = {number.benchmark for number in recipe.numbers(panel)}
        assert benchmarks == {find_panel(panel).benchmark}


@pytest.mark.parametrize("name", recipe_names())
def test_each_value_of_a_peer_preset_has_its_source_in_a_comment(name: str) -> None:
    text = (PRESETS / f"{find_recipe(name).preset}.toml").read_text(encoding="utf-8")
    unsourced = ("about", "arms", "extends", "name", "split")
    for line in text.splitlines():
        key, equals, rest = line.partition(" = ")
        if equals and not line.startswith("#") and key not in unsourced:
            assert re.search(r"# \S", rest), line
    assert tomllib.loads(text)["about"].endswith("see `coevo reproduce`.")


def test_the_tiny_scale_changes_only_settings_that_exist() -> None:
    config = load_config("peer_gigpo_alfworld_1_5b", sets=dict(tiny_settings())).config
    assert config.loop.max_steps == 2
    assert config.policy.model.path == "smollm2"


@pytest.mark.parametrize(
    ("percent", "verdict", "points"),
    [(72.8, "within", 0), (77.9, "within", 0), (72.0, "below", 0.8), (80.0, "above", 2.1)],
)
def test_a_result_is_judged_by_the_spread_of_published_values(
    percent: float, verdict: str, points: float
) -> None:
    assert judge_result(percent, NUMBERS) == (SpreadVerdict(verdict), points)


@given(st.floats(0, 100))
def test_a_verdict_names_the_side_and_the_distance(percent: float) -> None:
    verdict, points = judge_result(percent, NUMBERS)
    low, high = min(n.value for n in NUMBERS), max(n.value for n in NUMBERS)
    gap = max(low - percent, percent - high, 0.0)
    assert points == pytest.approx(gap, abs=0.05 + 1e-9)
    assert (verdict is SpreadVerdict.WITHIN) == (low <= percent <= high)


def test_without_a_name_the_recipes_are_listed_with_published_values(coevo: Coevo) -> None:
    text = " ".join(coevo("reproduce").split())
    assert "grpo-alfworld-1.5b" in text
    assert "72.8% to 77.9% (4 sources) on alfworld-valid-seen-140" in text
    recipes = json.loads(coevo("reproduce", "--json"))
    assert [one["name"] for one in recipes] == recipe_names()


def test_a_dry_run_prints_both_sides_the_panels_and_the_plan(coevo: Coevo, tmp_path: Path) -> None:
    text = coevo("reproduce", "gigpo-webshop-1.5b", "--dry-run", "--card", "h100")
    assert "mean of the loss" in text
    assert "webshop-product-500; published values: 65% to 67.4% (5 sources)" in text
    assert "training episodes" in text
    assert "This recipe has not been run at full scale" in text
    data = json.loads(coevo("reproduce", "gigpo-webshop-1.5b", "--dry-run", "--json"))
    assert data["panels"]["webshop-product-val-128"] == []
    assert len(data["panels"]["webshop-product-500"]) == 5
    assert data["plan"]["steps"] == 150
    assert not [*tmp_path.iterdir()], "nothing is written"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("gigpo-alfwrld-1.5b", "no recipe 'gigpo-alfwrld-1.5b'. Did you mean"),
        ("gigpo-alfworld-1.5b --set policy.kind=tiny", "policy.kind = 'tiny' cannot reproduce"),
        ("gigpo-alfworld-1.5b --set policy.kind=openai", "policy.kind = 'openai' cannot"),
        ("gigpo-alfworld-1.5b --set evaluation.panel=none", "evaluation.panel is none"),
        ("gigpo-alfworld-1.5b --card h100", "--card selects the GPU to plan for"),
        ("gigpo-alfworld-1.5b --name ../x", "'../x'"),
        ("gigpo-alfworld-1.5b", "no terminal to ask on. Pass --yes"),
        ("gigpo-alfworld-1.5b --scale small", "'small'"),
    ],
)
def test_a_mistake_is_refused_with_its_value_and_what_to_do(
    coevo: Coevo, arguments: str, words: str, tmp_path: Path
) -> None:
    text = " ".join(coevo("reproduce", *arguments.split(), code=2).split())
    assert words in text
    assert not [*tmp_path.iterdir()]


def test_a_run_that_reproduces_something_else_is_kept(
    coevo: Coevo, finished: Path, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(finished)
    text = coevo("reproduce", "gigpo-alfworld-1.5b", "--name", "mine", "--yes", code=2)
    assert "already contains a run that reproduces no recipe" in " ".join(text.split())


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A reproduction with a tiny Llama in the built-in shop."""
    model = make_tiny_llama(
        tmp_path_factory.mktemp("model") / "llama", max_position_embeddings=8192
    )
    sets = {
        "policy.model.path": model,
        "policy.chat.max_answer_tokens": 4,
        "benchmark.subset": "builtin",
        "benchmark.max_steps": 2,
    }
    return [
        *("reproduce", "gigpo-webshop-1.5b", "--scale", "tiny", "--name", "again", "--yes"),
        *(f"--set={key}={value}" for key, value in sets.items()),
    ]


def test_a_tiny_reproduction_ends_with_a_report(
    arguments: list[str], child: NewChild, tmp_path: Path
) -> None:
    done = child(*arguments)
    assert done.end() == 0, done.text
    folder = RunFolder(tmp_path / "runs" / "again")
    one = read_reproduction(folder)
    (result,) = one.results
    assert [point.step for point in result.points] == [0, 1, 2]
    assert result.panel.name == "webshop-tiny-20"
    for point in result.points:
        cited = Citation.parse(point.cite)
        assert (cited.tasks, cited.samples) == (20, 1)
        assert result.panel.hash.startswith(cited.panel_hash)
    assert result.choice is not None
    assert result.choice.n == 2
    assert "cannot be told" in result.best_and_last
    assert "says nothing about the published values" in one.verdicts[0]
    whys = {row.key: row.why for row in one.settings if row.differs and row.key}
    assert whys["loop.max_steps"] == "the scale tiny"
    assert whys["policy.model.path"] == "the scale tiny"
    ours = {row.name: row.ours for row in one.settings}
    assert ours["validation tasks"].startswith("20 goals")
    page = folder.reproduction_report.read_text(encoding="utf-8")
    for words in ("<svg", result.points[-1].cite, "Setting by setting", "the scale tiny"):
        assert words in page
    assert "webshop-tiny-20: " in done.text
    before = folder.reproduction_report.read_bytes()
    folder.reproduction_report.unlink()
    again = child("resume", "again")
    assert again.end() == 0, again.text
    assert folder.reproduction_report.read_bytes() == before


@pytest.mark.slow
def test_a_reproduction_that_is_killed_ends_like_an_uninterrupted_one(
    arguments: list[str], tmp_path: Path
) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    for folder in (straight, broken):
        folder.mkdir()
    done = Child(straight, *arguments)
    assert done.end() == 0, done.text
    for line in ("evaluate warm-up", "train verl_agent: 1/2"):
        cut = Child(broken, *arguments)
        cut.wait_for(line)
        cut.process.kill()
        cut.end()
    changed = Child(broken, *arguments, "--set=learner.lr=1e-4")
    assert changed.end() == 2
    assert "has begun with other values of learner.lr." in changed.text
    done = Child(broken, *arguments)
    assert done.end() == 0, done.text
    assert_same(straight / "runs" / "again", broken / "runs" / "again")


@pytest.mark.slow
@pytest.mark.usefixtures("official_games")
def test_a_reproduction_at_full_scale_is_judged_by_the_published_values(
    child: NewChild, tmp_path: Path
) -> None:
    sets = {
        "policy.kind": "transformers",
        "policy.model.path": make_tiny_llama(tmp_path / "llama", max_position_embeddings=4096),
        "policy.chat.max_answer_tokens": 4,
        "benchmark.max_steps": 1,
        "evaluation.samples": 1,
        "loop.max_steps": 1,
        "loop.groups_per_step": 1,
        "rollout.group_size": 2,
    }
    done = child(
        *("reproduce", "grpo-alfworld-1.5b", "--yes"),
        *(f"--set={key}={value}" for key, value in sets.items()),
    )
    assert done.end() == 0, done.text
    seen, unseen = read_reproduction(RunFolder(tmp_path / "runs" / "grpo-alfworld-1.5b")).results
    assert (seen.panel.name, unseen.panel.name) == (
        "alfworld-valid-seen-140",
        "alfworld-valid-unseen-134",
    )
    assert (
        [point.step for point in seen.points] == [point.step for point in unseen.points] == [0, 1]
    )
    assert seen.verdict.startswith(
        "0.0% is below the published values, 72.8% to 77.9% in 4 sources, by 72.8 points."
    )
    assert (
        "does not reach them. These differences could explain it: training tasks, " in seen.verdict
    )
    assert "70.1% to 71.1% in 2 sources" in unseen.verdict
    assert "model" in seen.verdict
    assert "one evaluation to choose from" in seen.best_and_last


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gigpo-alfworld-1.5b", "gigpo-webshop-1.5b"])
@pytest.mark.usefixtures("official_games", "official_data")
def test_a_small_model_reproduces_a_recipe_although_it_is_killed_twice(
    name: str, child: NewChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COEVO_HOME", str(USERS_HOME))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    fetched = child("model", "fetch", "smollm2")
    assert fetched.end() == 0, fetched.text
    command = ("reproduce", name, "--scale", "tiny", "--yes")
    for line in ("evaluate warm-up", "train verl_agent: 1/2"):
        cut = child(*command)
        cut.wait_for(line)
        cut.process.kill()
        cut.end()
    done = child(*command)
    assert done.end() == 0, done.text
    folder = RunFolder(tmp_path / "runs" / f"{name}-tiny")
    (result,) = read_reproduction(folder).results
    assert [point.step for point in result.points] == [0, 1, 2]
    assert result.panel.name.endswith("-tiny-20")
    assert folder.reproduction_report.is_file()
