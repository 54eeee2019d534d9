"""The list of tables: filters, and costs that are planned or measured, never invented."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.runs.experiments import listing
from coevo_gym.runs.experiments.cells import find_budget
from coevo_gym.runs.experiments.definition import experiment_names, load_experiment
from coevo_gym.runs.experiments.listing import find_experiments, table_cost
from coevo_gym.runs.experiments.records import read_records
from tests import toy
from tests.runs.experiments.conftest import TABLE, Coevo
from tests.runs.experiments.test_reuse import write_tables

RESULTS = Path(__file__).parents[3] / "results"


def names(**filters: Any) -> list[str]:
    return [experiment.name for _, experiment in find_experiments(**filters)]


@pytest.fixture
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, without the checkout's published cells."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(listing, "RESULTS", "published")


@pytest.mark.usefixtures("_alone")
def test_filters_limit_the_list(tmp_path: Path) -> None:
    assert names() == list(experiment_names())
    on_alfworld = names(benchmark="alfworld")
    assert "rbc_alfworld" in on_alfworld
    assert all("alfworld" in load_experiment(name).benchmarks for name in on_alfworld)
    assert names(method="seal") == [
        name
        for name in experiment_names()
        if any((row.method or row.name) == "seal" for row in load_experiment(name).rows)
    ]
    assert names(words=["seal", "table 3"]) == ["seal_table3"]
    assert names(words=["no such word"]) == []
    write_tables(tmp_path)
    Path("pyproject.toml").write_text("[project]\n")
    assert names(origin="own") == ["first", "second"]
    assert names(origin="built-in") == list(experiment_names())
    assert names(origin="own", method="signal_blind") == ["second"]


@pytest.mark.usefixtures("_alone")
def test_the_cost_of_a_table_is_planned(tmp_path: Path) -> None:
    write_tables(tmp_path)
    toy.register()
    cost = table_cost(load_experiment("second.toml"), "toy", "tiny")
    assert cost.cells == 2
    steps = toy.ToyEnv.default_max_steps
    assert cost.env_steps == 2 * 2 * 4 * steps  # cells, groups and episodes of one learner step
    assert (cost.sampled_tokens, cost.asked_tokens, cost.measured) == (0, 0, None)
    explorers = load_experiment("coevolve_table12")
    large = table_cost(explorers, "bfcl", find_budget(explorers, None))
    assert large.sampled_tokens > large.env_steps > 0
    assert large.asked_tokens > 0


@pytest.mark.usefixtures("_alone")
def test_the_time_is_that_of_stored_cells_with_the_same_settings() -> None:
    experiment = load_experiment("rbc_webshop")
    assert table_cost(experiment, "webshop", "small").measured is None
    Path("published").mkdir()
    shutil.copy(RESULTS / "rbc_webshop.jsonl", "published")
    measured = table_cost(experiment, "webshop", "small").measured
    records = read_records(RESULTS / "rbc_webshop.jsonl").values()
    minutes = [sum(record.measures["seconds"].values()) / 60 for record in records]
    assert measured is not None
    assert measured.cells == len(records)
    assert measured.wall_minutes == pytest.approx(sum(minutes) / len(minutes))
    assert measured.cpu_minutes is None
    assert measured.sources == ("published/rbc_webshop.jsonl",)
    # Other settings have not been measured.
    assert table_cost(experiment, "webshop", "tiny").measured is None
    lines = Path("published/rbc_webshop.jsonl").read_text().splitlines()
    cells = [json.loads(line) for line in lines]
    for cell in cells:
        cell["manifest"]["config"]["evaluation"]["n_tasks"] += 1
    Path("published/rbc_webshop.jsonl").write_text("".join(f"{json.dumps(c)}\n" for c in cells))
    assert table_cost(experiment, "webshop", "small").measured is None


def test_the_list_prints_costs_and_says_what_is_not_known(coevo: Coevo) -> None:
    text = " ".join(coevo("experiment", "--list", "--find", "rbc_webshop").split())
    assert "costs 60 cells, at most" in text
    assert "minutes per cell without evaluations (60 cells in results/rbc_webshop.jsonl)" in text
    (row,) = json.loads(
        coevo("experiment", "--list", "--find", "seal_table3", "--json", only_out=True)
    )
    assert row["origin"] == "built-in"
    assert row["cost"]["measured"] is None
    assert "not known: no stored cell has these settings" in coevo(
        "experiment", "seal_table3", "--list"
    )
    assert "No table matches." in coevo("experiment", "--list", "--find", "no such word")


MISTAKES = {
    ("--list", "--method", "coevolv"): "with the method 'coevolv'. Did you mean 'coevolve'?",
    ("--list", "--benchmark", "webshp"): "the benchmark 'webshp'. Did you mean 'webshop'?",
    ("--list", "--budget", "smal"): "'smal' is not one of 'tiny', 'small', 'paper'",
    ("--list", "--origin", "mine"): "'mine' is not one of 'built-in', 'own'",
    ("controls", "--find", "x"): "--find filters the list of tables, so it needs --list.",
    ("controls", "--method", "x"): "--method filters the list of tables, so it needs --list.",
    ("controls", "--list", "--find", "x"): "Omit controls to filter the list",
    ("controls", "--size", "page"): "--size is the width of a figure, so it needs --plot.",
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_in_a_filter_is_named(coevo: Coevo, arguments: tuple[str, ...]) -> None:
    assert MISTAKES[arguments] in coevo("experiment", *arguments, code=2)


def test_a_table_of_the_tests_is_listed_as_own(coevo: Coevo) -> None:
    toy.register()
    (row,) = json.loads(coevo("experiment", str(TABLE), "--list", "--json", only_out=True))
    assert (row["name"], row["origin"]) == ("toy_table", "own")
