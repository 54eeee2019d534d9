"""The tables that come with the package, and what is said of those that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from coevo_gym.cli import output
from coevo_gym.core.errors import ConfigError
from coevo_gym.runs.config import ArmConfig, RunConfig, arm_configs, load_config
from coevo_gym.runs.config.table_files import parse_seeds
from coevo_gym.runs.experiments.cells import (
    choose_cells,
    find_budget,
    resolve_cell,
    settings_of_shared_start,
)
from coevo_gym.runs.experiments.definition import (
    Budget,
    default_budgets,
    experiment_names,
    load_experiment,
)
from coevo_gym.runs.experiments.measures import MEASURES
from coevo_gym.runs.experiments.needs import needs_of
from coevo_gym.runs.experiments.numbers import COLUMNS
from tests.runs.experiments.conftest import TABLE, Coevo

WANTED = {
    *(f"agentevolver_{name}" for name in ("table1", "table2", "table3", "fig12a", "fig12b")),
    *(f"coevolve_table{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15)),
    *(
        "controls",
        "rbc_noisy",
        "rbc_noisy_again",
        "rbc_webshop",
        "rbc_alfworld",
        "rbc_alfworld_few",
        "appworld",
        "role_agent_table1",
        "role_agent_table1_7b",
        "role_agent_table3",
        "role_agent_table4",
        "role_agent_table7",
        *(f"agentevolver_{name}" for name in ("table4", "table5", "table6", "table7")),
        *(f"agentevolver_{name}" for name in ("fig13", "fig14", "fig16")),
        "seal_table1",
        "seal_table3",
        "lm_first",
        "official_shop",
        "draw_matters",
    ),
}


def test_the_package_contains_exactly_the_expected_tables() -> None:
    assert set(experiment_names()) == WANTED


@pytest.mark.parametrize("name", experiment_names())
def test_all_rows_of_a_table_have_valid_settings_at_each_budget(name: str) -> None:
    """Not every benchmark has every budget."""
    experiment = load_experiment(name)
    assert experiment.title
    assert set(experiment.measures) <= set(MEASURES)
    assert set(experiment.columns) <= set(COLUMNS)
    assert experiment.metric in COLUMNS
    experiment.budget_of(experiment.budget, experiment.benchmarks[0])
    for size in experiment.sizes:
        for benchmark in experiment.benchmarks:
            try:
                experiment.budget_of(size, benchmark)
            except ConfigError as error:
                assert "has no budget" in str(error)  # noqa: PT017 (not every one is everywhere)
                continue
            for row in experiment.rows:
                if not row.shows:
                    where = {"benchmark": benchmark, "budget": size}
                    config = resolve_cell(experiment, row, 1, **where, environ={}).config
                    assert config.arms == (row.name,)
                    assert config.seed == 1
                    assert config.benchmark.name == benchmark
                    assert row.label_at(size)
                    assert "default" not in row.label_at(size)


def resolved(
    name: str, row: str, benchmark: str, budget: Any = "paper", seed: int = 1
) -> tuple[RunConfig, ArmConfig]:
    table = load_experiment(name)
    (chosen,) = table.select_rows((row,))
    config = resolve_cell(
        table, chosen, seed, benchmark=benchmark, budget=budget, environ={}
    ).config
    return config, arm_configs(config)[row]


def test_rbc_alfworld_few_uses_the_settings_of_rbc_alfworld() -> None:
    asked, again = load_experiment("rbc_alfworld"), load_experiment("rbc_alfworld_few")
    assert set(asked.seeds).isdisjoint(again.seeds)
    for row in again.rows:
        one, arm = resolved(again.name, row.name, "alfworld", "small")
        other, its_arm = resolved(asked.name, f"{row.name}_few", "alfworld", "small")
        assert arm.curriculum.initial_size == 30
        assert arm.model_copy(update={"name": its_arm.name}) == its_arm
        # What the arm may set stands in the arm.
        assert settings_of_shared_start(one) | {"curriculum": None} == settings_of_shared_start(
            other
        ) | {"curriculum": None}


def test_rbc_noisy_again_differs_from_rbc_noisy_only_in_its_seeds() -> None:
    first, again = load_experiment("rbc_noisy"), load_experiment("rbc_noisy_again")
    assert set(first.seeds).isdisjoint(again.seeds)
    theirs = {"name", "title", "about", "seeds", "questions"}
    assert first.model_dump(exclude=theirs) == again.model_dump(exclude=theirs)


@pytest.mark.parametrize("name", experiment_names())
def test_tables_on_webshop_have_a_preset_at_the_tiny_budget(name: str) -> None:
    experiment = load_experiment(name)
    if "tiny" in experiment.sizes and "webshop" in experiment.benchmarks:
        assert experiment.budget_of("tiny", "webshop").preset


def test_seeds_can_be_a_count_a_list_or_a_range() -> None:
    assert parse_seeds(None, [4, 5]) == (4, 5)
    assert parse_seeds("1", [4, 5]) == (4,)
    assert parse_seeds("4", [4, 5]) == (4, 5, 6, 7)
    assert parse_seeds("7,", [4, 5]) == (7,)
    assert parse_seeds("401-403, 9", [4, 5]) == (401, 402, 403, 9)
    for wrong in ("0", "3,3", "1-", "two", "5-4", ""):
        with pytest.raises(ConfigError, match="--seeds"):
            parse_seeds(wrong, [1])


def test_folder_names_contain_a_non_default_benchmark_and_budget(tmp_path: Path) -> None:
    table = load_experiment("coevolve_table5")
    assert choose_cells(table, tmp_path).folder.name == "coevolve_table5"
    chosen = choose_cells(table, tmp_path, benchmark="bfcl", budget="paper", name=None)
    assert chosen.folder.name == "coevolve_table5-bfcl-paper"
    assert choose_cells(table, tmp_path, benchmark="bfcl", name="mine").folder.name == "mine"


def test_a_table_budget_overrides_the_default_budget() -> None:
    usual = default_budgets()["tiny"]["webshop"]
    more = Budget(set={"loop.max_env_steps": 1})
    assert more.apply_to(usual).preset == usual.preset
    assert more.apply_to(usual).set == {**usual.set, "loop.max_env_steps": 1}
    anew = Budget(preset="alfworld")
    assert anew.apply_to(usual) == anew


def test_a_row_label_shows_the_value_set_at_each_budget() -> None:
    row = next(row for row in load_experiment("coevolve_table4").rows if row.name == "n100")
    assert row.label_at("paper") == "N = 100"
    assert row.label_at("tiny") == "N = 24"
    assert row.paper_results("appworld", "reported") == {"reported": 35.12}
    assert row.paper_results("webshop", "reported") == {}


WRONG = [
    ('title = "x"', "benchmarks is missing"),
    ("colour = 1", "colour: there is no key 'colour'. Did you mean 'columns'?"),
    ('follows = "coevolv"', "unknown paper 'coevolv'. Did you mean 'coevolve'?"),
    ('baselines = ["none"]', "row 'static' has an unknown baseline, 'none'"),
    ("baselines = [", "as TOML: "),
    (
        'baselines = []\nquestions = [["static", "other"]]',
        "questions: ('static', 'other') must pair a row with one of its baselines",
    ),
    ('baselines = []\nbudget = "small"\nsizes = ["tiny"]', "the budget 'small' is not defined"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_mistake_in_a_table_file_is_reported_with_the_file(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    head = 'title = "x"\nbenchmarks = ["toy"]\n' if not text.startswith("title") else ""
    path.write_text(f'{head}{text}\n[[rows]]\nname = "static"\n')
    with pytest.raises(ConfigError, match=r"mine\.toml") as error:
        load_experiment(str(path))
    assert message in str(error.value)


def test_selecting_only_a_row_without_runs_or_an_unknown_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Select one that does"):
        load_experiment(str(TABLE)).select_rows(("start",))
    with pytest.raises(ConfigError, match=r"has no row 'statik'\. Did you mean 'static'"):
        load_experiment(str(TABLE)).select_rows(("statik",))


def test_wrong_settings_are_reported_with_their_table_and_row(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TABLE.read_text().replace('"curriculum.growth.drafts" = 6', '"loop.x" = 6'))
    table = load_experiment(str(path))
    with pytest.raises(ConfigError, match=r"mine, row blind: .*loop\.x"):
        resolve_cell(table, table.rows[2], 1, benchmark="toy", budget="tiny", environ={})


def test_an_unknown_budget_is_refused() -> None:
    table = load_experiment(str(TABLE))
    with pytest.raises(ConfigError, match="has no budget 'small' for toy"):
        table.budget_of("small", "toy")
    with pytest.raises(ConfigError, match=r"no budget 'tiney'\. Did you mean 'tiny'"):
        find_budget(table, "tiney")
    with pytest.raises(ConfigError, match="coevolve_table1 has no budget 'tiny'"):
        find_budget(load_experiment("coevolve_table1"), "tiny")


def test_the_needs_of_a_table_include_data_models_and_endpoints() -> None:
    table = load_experiment("rbc_alfworld")
    wanted = {need.what: need.missing for need in needs_of(table, "alfworld", "tiny")}
    assert wanted["the official data of alfworld"] == "built-in scenes are in use"
    models = {need.what for need in needs_of(load_experiment("coevolve_table1"), "bfcl", "paper")}
    small, large = "Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen3-30B-A3B-Instruct-2507"
    assert {"bfcl", small, large, "vLLM", "a GPU", "an endpoint with qwen3-max"} <= models
    asked = {
        need.what for need in needs_of(load_experiment("coevolve_table12"), "webshop", "small")
    }
    assert {"an endpoint with qwen-plus", "an endpoint with qwen3-max"} <= asked
    small_model = {need.what for need in needs_of(load_experiment("lm_first"), "webshop", "small")}
    assert small_model == {"webshop", "smollm2"}
    needs = needs_of(load_experiment("coevolve_table6"), "webshop", "tiny")
    assert [need.what for need in needs] == ["webshop", "alfworld"]


@pytest.mark.parametrize("columns", [80, 120])
def test_the_list_of_tables_fits_the_terminal(
    coevo: Coevo, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(output, "console", Console(width=columns))
    lines = coevo("experiment", "--list").splitlines()
    assert max(map(len, lines)) <= columns
    assert [line for line in lines if not line.startswith(" ")] == list(experiment_names())
    whole = set(" ".join(lines).replace(",", " ").split())
    for table in map(load_experiment, experiment_names()):
        assert {*(row.name for row in table.rows), *table.benchmarks} <= whole


def test_the_list_of_tables_shows_what_each_needs(coevo: Coevo) -> None:
    printed = coevo("experiment", "--list")
    assert "  needs       webshop, alfworld\n" in printed
    assert experiment_names().index("coevolve_table2") < experiment_names().index(
        "coevolve_table10"
    )
    assert "There is no experiment 'control'. Did you mean 'controls'" in coevo(
        "experiment", "control", code=2
    )
    assert "No table given" in coevo("experiment", code=2)


@pytest.mark.parametrize("benchmark", ["webshop", "alfworld"])
def test_a_dry_run_prints_the_plan_of_each_row_and_starts_nothing(
    coevo: Coevo, benchmark: str, tmp_path: Path
) -> None:
    asked = ["experiment", "role_agent_table3", "--budget=paper", f"--benchmark={benchmark}"]
    report = json.loads(coevo(*asked, "--dry-run", "--card=h100", "--json", only_out=True))
    rows = ["gigpo", "role_agent", "no_failure_modes", "no_foresight"]
    cells = [(cell["row"], cell["seed"], cell["state"]) for cell in report["cells"]]
    assert cells == [(row, seed, "new") for seed in (1, 2, 3) for row in rows]
    assert [*report["paper"]] == rows
    assert [plan["rows"] for plan in report["plans"]] == [
        *([row] for row in rows)  # foresight samples tokens, failure modes ask a model
    ]
    assert [len(plan["asked"]) for plan in report["plans"]] == [0, 1, 0, 1]
    assert [plan["max_study_tokens"] > 0 for plan in report["plans"]] == [False, True, True, False]
    assert all(plan["model"]["shortfall"] == "" for plan in report["plans"])
    text = " ".join(coevo(*asked, "--dry-run", "--card=h100").split())
    assert "12 in runs/role_agent_table3" in text
    assert "each cell of role_agent" in text
    assert "queries from studies at most 21,000" in text
    assert not list(tmp_path.iterdir())


def test_paper_numbers_appear_only_beside_rows_with_the_papers_settings(coevo: Coevo) -> None:
    asked = ["experiment", "agentevolver_table1", "--budget=paper", "--benchmark=bfcl"]
    report = json.loads(coevo(*asked, "--dry-run", "--seeds=1", "--json", only_out=True))
    assert report["paper"] == {
        "zero": {"avg_at_8": 29.8, "best_at_8": 42.4},
        "zero_14b": {"avg_at_8": 41.6, "best_at_8": 54.1},
    }
    (note,) = report["notes"]
    assert "beside + questioning, + questioning and navigating" in note
    for differs in ("policy.model.lora_rank: 64", "learner.lr: 1e-05"):
        assert differs in note
    assert note.count("the paper's") == 2
    larger = [row["row"] for row in report["cells"]][-4:]
    assert all(name.endswith("_14b") for name in larger)


@pytest.mark.parametrize("row", ["native", "evolved", "mixed"])
@pytest.mark.parametrize(("benchmark", "window"), [("bfcl", 27), ("appworld", 17)])
def test_a_budget_can_set_method_settings(row: str, benchmark: str, window: int) -> None:
    arm = resolved("agentevolver_table2", row, benchmark)[1]
    assert arm.settings.depth_window == window  # type: ignore[attr-defined]


@pytest.mark.parametrize("benchmark", load_experiment("agentevolver_fig12b").benchmarks)
def test_the_same_model_judges_with_and_without_a_solution(benchmark: str) -> None:
    table, rows = "agentevolver_fig12b", ("judge", "judge_plain")
    judge, plain = (resolved(table, row, benchmark)[1] for row in rows)
    assert judge.analyst == plain.analyst


@pytest.mark.parametrize(("size", "ending"), [("7b", ""), ("14b", "_14b")])
@pytest.mark.parametrize("benchmark", ["appworld", "bfcl"])
def test_rows_of_a_published_model_have_the_settings_of_its_preset(
    benchmark: str, size: str, ending: str
) -> None:
    config, arm = resolved("agentevolver_table1", f"all{ending}", benchmark, seed=0)
    preset = load_config(f"agentevolver_{benchmark}_qwen2_5_{size}", environ={}).config
    update = {"name": preset.name, "arms": preset.arms, "arm": preset.arm}
    assert config.model_copy(update=update) == preset
    assert arm.settings == arm_configs(preset)["agentevolver"].settings


def test_options_that_do_not_fit_a_dry_run_are_refused(coevo: Coevo) -> None:
    assert "--card" in coevo("experiment", "controls", "--card=h100", code=2)
    assert "--csv" in coevo("experiment", "controls", "--dry-run", "--csv", code=2)
    text = coevo("experiment", "role_agent_table1", "--budget=tiny", "--dry-run")
    assert "Left out: zero-shot" in text
