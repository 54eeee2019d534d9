"""Audits: of launch scripts by rule, and of our own runs."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coevo_gym.core.errors import ConfigError
from coevo_gym.envs.alfworld.peer_draws import draw_games
from coevo_gym.envs.webshop.engine.goals import catalogue_goals
from coevo_gym.envs.webshop.official import load_official_catalogue
from coevo_gym.envs.webshop.peer_draws import draw_goals, draw_positions, shuffle_positions
from coevo_gym.runs.audits import peer_audit
from coevo_gym.runs.audits.launch_script import read_launch_script
from coevo_gym.runs.audits.peer_audit import RecipeDraws, audit_recipe, simulate_noise
from coevo_gym.runs.audits.peer_recipe import (
    EvalDataset,
    PeerBenchmark,
    PeerRecipe,
    recipe_of_script,
    shipped_recipe,
)
from coevo_gym.store.folder import RunFolder
from coevo_gym.view.model.run_audit import audit_run
from tests.runs.conftest import Coevo
from tests.webshop import handmade

SCRIPT = r"""
set -x
engine=${1:-vllm}
n_train=16; n_val=128   # tasks
python3 -m prepare --mode 'text' --train_data_size $n_train \
    --val_data_size $((n_val * 2))

python3 -m trainer \
    data.train_files=$HOME/train.parquet data.train_batch_size=$n_train \
    data.val_batch_size="${n_val}" \
    name='x # y' rollout.name=$engine \
    env.env_name=Webshop +env.seed=3 env.rollout.n=8 \
    trainer.test_freq=5 trainer.total_epochs=150 $@
"""


def recipe(text: str, **options: Any) -> PeerRecipe:
    return recipe_of_script(read_launch_script(text, "run.sh"), options)


def test_games_are_dealt_as_in_the_worked_examples() -> None:
    def deal(seed: int) -> str:
        return "".join(str(g) for (g,) in draw_games(range(5), seed=seed, groups=1, resets=10))

    assert [deal(0), deal(1), deal(1000)] == ["2013421043", "2140324301", "2104302413"]
    two = draw_games(range(5), seed=0, groups=2, resets=3)
    assert two == [(2, 2), (0, 1), (1, 4)]  # the second group has the next seed


def test_goals_are_shuffled_as_in_the_worked_examples() -> None:
    assert shuffle_positions(6, 0) == [4, 2, 1, 0, 5, 3]
    assert shuffle_positions(6, 1) == [2, 3, 5, 0, 4, 1]


def test_positions_are_drawn_without_repeats_within_a_reset() -> None:
    draws = draw_positions(range(500, 510), seed=0, size=10, resets=3)
    assert all(sorted(draw) == list(range(500, 510)) for draw in draws)
    assert len(set(draws)) == 3
    with pytest.raises(ConfigError, match="10 positions to draw from, too few for a batch of 11"):
        draw_positions(range(10), seed=0, size=11, resets=1)


def test_the_same_position_is_another_goal_in_a_shop_with_another_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coevo_gym.envs.webshop.peer_draws.VALIDATION_POSITIONS", 1)
    shop = handmade.catalogue()
    goals = [draw_goals(shop, training=False, seed=seed, groups=1, resets=2) for seed in range(20)]
    assert all(first == second for first, second in goals)  # there is one position
    assert len({batch[0][0][:2] for batch in goals}) > 1
    caps: dict[str, set[float]] = {}
    for (goal,), _ in goals:
        caps.setdefault(goal.asin, set()).add(goal.price_cap)
    assert any(len(values) > 1 for values in caps.values())


def test_a_script_is_read_with_its_variables_sums_quotes_and_comments() -> None:
    script = read_launch_script(SCRIPT, "run.sh")
    assert {key: value.text for key, value in script.overrides.items()} == {
        "data.train_files": "$HOME/train.parquet",
        "data.train_batch_size": "16",
        "data.val_batch_size": "128",
        "rollout.name": "vllm",
        "env.env_name": "Webshop",
        "env.seed": "3",
        "env.rollout.n": "8",
        "trainer.test_freq": "5",
        "trainer.total_epochs": "150",
    }
    assert script.options["val_data_size"].text == "256"
    assert script.overrides["env.seed"].line == 12


def test_the_recipe_of_a_script_says_where_each_value_is_from() -> None:
    run_recipe = recipe(SCRIPT)
    assert (run_recipe.benchmark, run_recipe.seed, run_recipe.groups, run_recipe.group_size) == (
        "webshop",
        3,
        16,
        8,
    )
    assert (run_recipe.iterations, run_recipe.val_batch, run_recipe.val_tasks) == (150, 128, 256)
    assert run_recipe.evaluated_at == (0, *range(5, 151, 5))
    origins = {setting.key: setting.origin for setting in run_recipe.settings}
    assert origins["env.seed"] == "run.sh:12"
    assert origins["tasks per evaluation"] == "run.sh:6"
    changed = recipe(SCRIPT, seed=0, iterations=12, val_batch=64)
    assert (changed.seed, changed.evaluated_at) == (0, (0, 5, 10, 12))
    assert changed.val_tasks == 64
    assert {s.key: s.origin for s in changed.settings}["env.seed"] == "option"


def test_missing_keys_have_the_trainer_s_defaults() -> None:
    run_recipe = recipe("python3 -m trainer data.val_batch_size=128 trainer.test_freq=10")
    assert (run_recipe.benchmark, run_recipe.seed, run_recipe.groups, run_recipe.group_size) == (
        "alfworld",
        0,
        1024,
        1,
    )
    assert (run_recipe.iterations, run_recipe.evaluated_at) == (30, (0, 10, 20, 30))
    assert run_recipe.eval_dataset is EvalDataset.SEEN
    assert "one iteration per epoch is assumed" in run_recipe.notes[0]
    assert {s.key: s.origin for s in run_recipe.settings}["env.seed"] == "verl-agent's default"


def test_more_rows_than_a_batch_give_more_iterations_per_epoch() -> None:
    prepare = "prepare --train_data_size 128\n"
    run_recipe = recipe(prepare + "go data.train_batch_size=16 data.val_batch_size=128 a.b=1")
    assert run_recipe.iterations == 30 * 8
    assert run_recipe.val_tasks == 256  # the default of the data preparation
    steps = recipe(
        prepare + "go data.train_batch_size=16 data.val_batch_size=128 "
        "trainer.total_training_steps=7 trainer.val_before_train=False trainer.test_freq=-1"
    )
    assert (steps.iterations, steps.evaluated_at) == (7, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo hello", "no commands with overrides"),
        ("go a.b=1\ngo a.b=2", r"2 commands with overrides key=value \(lines 1, 2\)"),
        ("go a.b='1", "run.sh:1: a quote or parenthesis is not closed"),
        ("go env.seed=$SEED data.val_batch_size=1", r"run.sh:1: env.seed=\$SEED depends on"),
        ("go env.seed=$(date) data.val_batch_size=1", "depends on a value that the script"),
        ("for s in 1 2; do go env.seed=$s a.b=1; done", r"env.seed=\$s depends on"),
        ("go env.seed=x data.val_batch_size=1", "env.seed must be a whole number, got 'x'"),
        ("go env.seed=-1 data.val_batch_size=1", "the seed to be at least 0, got -1"),
        ("go env.seed=1", "does not set data.val_batch_size, and verl-agent needs a number"),
        ("go env.env_name=sokoban", "env.env_name=sokoban draws tasks by rules"),
        ("go env.env_name=multitask", "audit each with --benchmark"),
        ("go env.env_name=Webshop env.webshop.human_goals=True", "human_goals=True is not"),
        ("go env.env_name=Webshop env.webshop.use_small=no", "must be True or False, got 'no'"),
        ("go env.alfworld.eval_dataset=x data.val_batch_size=1", "eval_dataset=x is unknown"),
        (
            "p --train_data_size 9000 --val_data_size 130\ngo data.val_batch_size=128",
            "cannot be divided into batches of 128, so verl-agent would stop",
        ),
        ("p --train_data_size 8\ngo data.val_batch_size=128", "iterations to be at least 1, got 0"),
        (
            "go data.val_batch_size=128 trainer.total_epochs=999999999999",
            "the audit can draw at most 10,000,000",
        ),
        ("p --val_data_size $N\ngo data.val_batch_size=128", "must be a whole number, got"),
    ],
)
def test_what_a_script_does_not_determine_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe(text)


@settings(max_examples=200)
@given(st.text(st.sampled_from("ab=$(){}\"'`\\\n ;&#*+-1.:@")))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ConfigError):
        read_launch_script(f"go a.b=1\n{text}", "run.sh")


def test_other_commands_of_a_script_do_not_disturb() -> None:
    text = "stop --all 2>/dev/null\nsource $(tool info --base)/x.sh\nexport PATH=$A/bin:$PATH\n"
    run_recipe = recipe(f"{text}ulimit -u 9\ngo data.val_batch_size=128 data.train_batch_size=16")
    assert (run_recipe.groups, run_recipe.iterations) == (16, 30)


def test_what_the_audit_cannot_see_is_a_note() -> None:
    notes = recipe(
        "if true; then\nn=1\nfi\np --train_data_size 16 --val_data_size 16\n"
        "go data.train_batch_size=16 data.val_batch_size=16 env.fair=True env.max_steps=5 "
        "algorithm.filter_groups.enable=True"
    ).notes
    assert [note.split(":")[0].split(" draws")[0] for note in notes] == [
        "algorithm.filter_groups.enable",
        "Keys that verl-agent does not have",
        "The script has if",
    ]
    assert "env.fair." in notes[1]
    assert "env.max_steps" not in notes[1]


def toy_draws(_: PeerRecipe) -> RecipeDraws:
    return RecipeDraws(
        training=[("a1", "b1"), ("a1", "c1")],
        evaluations=[("a1", "a1", "d1"), ("a1", "c2", "d1")],
        training_pool=9,
        validation_pool=("a1", "c2", "d1", "e1"),
        matches={"same task": lambda task: task, "same letter": lambda task: task[0]},
        order="",
    )


def test_counts_of_a_small_run_are_those_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_audit, "draw_recipe", toy_draws)
    run_recipe = shipped_recipe(
        PeerBenchmark.ALFWORLD,
        {"groups": 2, "iterations": 2, "validate_every": 2, "val_batch": 3},
    )
    audit = audit_recipe(run_recipe)
    assert audit.training == peer_audit.TrainingDraws(draws=4, distinct=3, most=2, pool=9)
    before, after = audit.evaluations
    assert (before.iteration, before.distinct, before.most, before.shared) == (0, 2, 2, None)
    assert before.trained == {"same task": 0, "same letter": 0}
    assert (after.iteration, after.distinct, after.most, after.shared) == (2, 3, 1, 2)
    assert after.trained == {"same task": 1, "same letter": 2}


def test_noise_of_different_tasks_is_binomial_and_of_one_task_is_its_own() -> None:
    pool = list(range(400))
    fixed = simulate_noise([pool[:100]] * 2, pool, rate=0.75, simulations=2_000)
    assert fixed.fixed_error == pytest.approx(100 * np.sqrt(0.125 / 100))
    # The true rate is the mean of all 400 tasks, of which these are a sample.
    chance = 0.125 / 100 + 0.0625 * (1 / 100 - 1 / 400)
    assert fixed.error == pytest.approx(100 * np.sqrt(chance), rel=0.05)
    repeated = simulate_noise([[0] * 100], pool, rate=0.75, simulations=2_000)
    assert repeated.error > 3 * fixed.error
    assert repeated.rise == pytest.approx(0, abs=2)
    rises = [
        simulate_noise([pool[:100]] * n, pool, rate=0.75, simulations=2_000).rise for n in (1, 10)
    ]
    assert rises[0] == pytest.approx(0, abs=0.3)
    # The largest of ten normal variables is 1.54 standard deviations above their mean.
    assert rises[1] == pytest.approx(1.54 * fixed.fixed_error, rel=0.1)
    with pytest.raises(ConfigError, match=r"must be in \(0, 1\), got 1"):
        simulate_noise([pool], pool, rate=1)


def test_options_and_targets_that_do_not_fit_are_usage_errors(coevo: Coevo) -> None:
    assert "Pass either a launch script or --benchmark" in coevo("audit", "verl-agent", code=2)
    assert "seed can only be passed for verl-agent" in coevo(
        "audit", "toy-run", "--seed", "1", code=2
    )
    assert "no run 'toy-rum'" in coevo("audit", "toy-rum", code=2)


def test_a_run_of_ours_was_not_trained_on_what_it_was_evaluated_on(
    coevo: Coevo, finished: Path
) -> None:
    rows = json.loads(coevo("audit", "toy-run", "--json"))["rows"]
    assert {row["policy"] for row in rows} >= {"random", "warm-up"}
    assert all(row["same_task"] == row["same_scenario"] == 0 for row in rows)
    assert all(row["distinct"] == row["shared"] > 0 for row in rows)
    trained = {row["policy"]: row["trained"] for row in rows}
    assert trained["random"] == 0 < trained["warm-up"] < max(trained.values())
    assert "No evaluated task was trained on" in coevo("audit", "toy-run")
    assert audit_run(str(finished)).benchmark == "toy"


def test_an_evaluated_task_that_was_trained_on_is_found_under_another_name(
    finished: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(finished, tmp_path / "leaking")
    with closing(sqlite3.connect(RunFolder(run).database)) as database, database:
        query = "SELECT scenario, instruction FROM tasks WHERE id IN (SELECT task_id FROM groups)"
        scenario, instruction = database.execute(query).fetchone()
        ids = [row[0] for row in database.execute("SELECT id FROM evaluated_tasks LIMIT 3")]
        change = "UPDATE evaluated_tasks SET scenario = ? WHERE id = ?"
        database.executemany(change, [(scenario, id) for id in ids])
        change = "UPDATE evaluated_tasks SET instruction = ? WHERE id = ?"
        database.execute(change, (instruction, ids[0]))
    worst = max(audit_run(str(run)).rows, key=lambda row: (row.same_task, row.same_scenario))
    assert (worst.same_task, worst.same_scenario) == (1, 2)


@pytest.mark.slow
def test_alfworld_s_draws_have_the_published_counts(
    alfworld_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COEVO_ALFWORLD_DATA", str(alfworld_store))
    audit = audit_recipe(shipped_recipe(PeerBenchmark.ALFWORLD, {}))
    assert (audit.training.distinct, audit.training.pool) == (1_777, 3_553)
    evaluations = audit.evaluations
    different = [one.distinct for one in evaluations]
    assert (different[0], min(different), max(different), round(np.mean(different))) == (
        *(91, 78, 93),
        84,
    )
    shared = [one.shared for one in evaluations if one.shared is not None]
    assert (shared[0], min(shared), max(shared), round(np.mean(shared))) == (62, 41, 62, 50)
    assert max(one.most for one in evaluations) == 6
    assert all(one.trained["same game"] == 0 for one in evaluations)
    ppo = {"groups": 128, "group_size": 1}
    assert audit_recipe(shipped_recipe(PeerBenchmark.ALFWORLD, ppo)).training.distinct == 3_543


@pytest.mark.slow
@pytest.mark.usefixtures("official_data")
@pytest.mark.parametrize(
    ("changes", "different", "shares"),
    [
        ({"val_tasks": 256}, 2_017, (28.1, 9.8, 96.9)),
        ({}, 2_017, (27.3, 11.7, 98.4)),
        ({"groups": 128, "group_size": 1}, 6_464, (91.4, 64.1, 100.0)),
    ],
)
def test_webshop_s_draws_have_the_published_shares(
    changes: dict[str, int], different: int, shares: tuple[float, ...]
) -> None:
    audit = audit_recipe(shipped_recipe(PeerBenchmark.WEBSHOP, changes))
    last = audit.evaluations[-1]
    assert last.iteration == 150
    rounded = tuple(round(100 * count / last.tasks, 1) for count in last.trained.values())
    assert rounded == shares
    assert (audit.training.distinct, audit.training.pool) == (different, 6_901)
    assert tuple(last.trained) == ("same goal", "same goal and price limit", "same product")


@pytest.mark.slow
def test_one_shop_for_all_workers_separates_webshop_s_goals_but_not_its_products(
    official_data: Path,
) -> None:
    goals = catalogue_goals(load_official_catalogue(official_data))
    order = shuffle_positions(len(goals), 0)
    training = draw_positions(range(500, len(goals)), seed=0, size=16, resets=150)
    validation = draw_positions(range(500), seed=1000, size=128, resets=62)[-2:]
    trained = [goals[order[position]] for draw in training for position in draw]
    last = [goals[order[position]] for draw in validation for position in draw]
    contents = {(goal.asin, goal.options) for goal in trained}
    products = {goal.asin for goal in trained}
    assert sum((goal.asin, goal.options) in contents for goal in last) == 0
    assert sum(goal.asin in products for goal in last) == 247
