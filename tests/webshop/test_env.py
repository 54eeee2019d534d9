"""CoEvolve-WebShop-v0: tasks, splits, rewards, rendering and bad input."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import coevo_gym
from coevo_gym.core.benchmark import find_task, get_benchmark
from coevo_gym.core.errors import (
    BenchmarkNotInstalled,
    CoevoError,
    DataError,
    ResetNeeded,
    TaskError,
)
from coevo_gym.core.task import NATIVE_SPLITS, Split
from coevo_gym.envs.webshop.env import WebShopEnv
from coevo_gym.envs.webshop.tasks import open_catalogue, split_of
from coevo_gym.episodes.episode import trajectory_of
from coevo_gym.testing import make_env, replay
from tests.webshop import handmade

TRAIN = coevo_gym.tasks("webshop", "train", "builtin")


def test_every_split_has_enough_tasks() -> None:
    counts = {split: len(coevo_gym.tasks("webshop", split)) for split in NATIVE_SPLITS}
    assert sum(counts.values()) >= 2000
    assert counts[Split.VAL] >= 200
    assert counts[Split.TEST] >= 200


def test_splits_share_no_product_and_no_task() -> None:
    tasks = {split: coevo_gym.tasks("webshop", split) for split in NATIVE_SPLITS}
    products = {split: {task.scenario for task in tasks[split]} for split in NATIVE_SPLITS}
    ids = {split: {task.id for task in tasks[split]} for split in NATIVE_SPLITS}
    for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
        assert not products[Split(one)] & products[Split(other)]
        assert not ids[Split(one)] & ids[Split(other)]
    for split in NATIVE_SPLITS:
        assert all(split_of(task.scenario) is task.split is split for task in tasks[split])
        assert len(ids[split]) == len(tasks[split])


def test_every_reference_solves_its_task() -> None:
    benchmark = get_benchmark("webshop")
    for split in NATIVE_SPLITS:
        for task in coevo_gym.tasks("webshop", split):
            result = benchmark.replay(task, task.solution)
            assert result.scores[-1] == 1.0, task.name
            assert max(result.scores[:-1]) == 0.0
            assert not any(result.errors)


def test_the_choices_contain_every_action_of_the_reference() -> None:
    """A scorer of ``choices(view)`` can therefore play it from the page and the instruction."""
    benchmark = get_benchmark("webshop")
    for task in TRAIN[::40]:
        env = make_env("webshop", task)
        for action in task.solution:
            assert action in benchmark.choices(env.view)
            env.step(action)


def test_the_reward_is_binary_or_the_original_score_by_mode() -> None:
    task = next(task for task in TRAIN if len(task.solution) > 3)
    skipped = (*task.solution[:2], "click[buy now]")  # buys without choosing options
    rewards = {}
    for mode in WebShopEnv.reward_modes:
        env = make_env("webshop", task, reward_mode=mode)
        for action in skipped:
            _, rewards[mode], _, _, info = env.step(action)
        assert 0.0 < info["score"] < 1.0
        assert info["end_reason"] == "failed"
    assert rewards == {"success": 0.0, "original": info["score"]}


def test_the_info_explains_an_impossible_action() -> None:
    env = make_env("webshop", TRAIN[0])
    before = env.view.observation
    observation, _, _, _, info = env.step("click[buy now]")
    assert observation == before
    assert (info["action_valid"], info["error_kind"]) == (False, "not_clickable")
    assert "'buy now' can be clicked" in info["webshop.reason"]


def test_the_info_has_the_product_the_options_and_finally_the_scores() -> None:
    task = next(task for task in TRAIN if len(task.solution) > 3)
    env = make_env("webshop", task)
    for action in task.solution[:-1]:
        _, _, _, _, info = env.step(action)
    assert info["webshop.asin"] == task.scenario
    assert len(json.loads(info["webshop.options"])) == len(task.solution) - 3
    assert info["webshop.r_type"] == -1.0
    _, _, _, _, info = env.step(task.solution[-1])
    assert (info["webshop.r_type"], info["webshop.r_price"]) == (1.0, 1.0)


def test_each_step_has_the_behaviour_symbol_of_its_action() -> None:
    env = make_env("webshop", TRAIN[0])
    item = TRAIN[0].solution[1]
    for action in (
        TRAIN[0].solution[0],
        item,
        "click[features]",
        "click[< prev]",
        "nonsense",
        "click[buy now]",
    ):
        env.step(action)
    symbols = [get_benchmark("webshop").symbol(step) for step in trajectory_of(env).steps]
    assert symbols == ["search", "item", "subpage", "page", "!", "buy"]


def test_the_html_rendering_is_an_escaped_page_without_links() -> None:
    task = TRAIN[0].model_copy(update={"instruction": "<script>alert(1)</script> & a mug"})
    env = make_env("webshop", task, render_mode="html")
    page = env.render()
    assert page is not None
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "http" not in page
    for action in task.solution:
        env.step(action)
        assert "</html>" in (env.render() or "")


def test_an_episode_has_fifteen_steps_by_default() -> None:
    outcome = replay(TRAIN[0], [])
    assert len(outcome.steps) == 15
    assert outcome.end_reason == "max_steps"


def test_recorded_episodes_of_the_original_give_the_same_observations(official_data: Path) -> None:
    """Through ``gym.make``, found by the original's goal number."""
    lines = (official_data / "expected_episodes_100.jsonl").read_text().splitlines()
    for line in lines:
        case = json.loads(line)
        kind = "human" if case["human"] else "synthetic"
        task = find_task("webshop", f"webshop/1k/{kind}/{case['goal_index']}")
        env = make_env("webshop", task, reward_mode="original", max_steps=100)
        seen, reward, terminated = [env.view.observation], 0.0, False
        for action in case["actions"]:
            observation, reward, terminated, _, _ = env.step(action)
            seen.append(observation)
        hashes = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in seen]
        assert hashes == case["obs_sha16"]
        assert (reward, terminated) == (case["reward"], case["done"])


def test_the_test_goals_of_the_original_are_for_evaluation_only(official_data: Path) -> None:
    official = coevo_gym.tasks("webshop", "test", "official_test")
    assert len(official) >= 500
    assert {task.split for task in official} == {Split.TEST}
    ids = {task.id for task in official}
    for split in ("train", "val"):
        assert not ids & {task.id for task in coevo_gym.tasks("webshop", split)}
        with pytest.raises(TaskError, match="That subset belongs to the test split"):
            gym.make("CoEvolve-WebShop-v0", split=split, subset="official_test")


def test_official_data_is_used_if_it_is_available(official_data: Path) -> None:
    assert coevo_gym.tasks("webshop", "train")[0].name.startswith("webshop/1k/")
    assert TRAIN[0].name.startswith("webshop/builtin/")
    assert find_task("webshop", TRAIN[0].name) == TRAIN[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "dev"}, "Unknown split 'dev'"),
        ({"subset": "tiny"}, "no subset 'tiny'. Choose one of: synthetic, human"),
        ({"subset": "human"}, "has no train tasks in subset 'human'"),
        ({"tasks": ["webshop/builtin/synthetic/99999"]}, "webshop has no task"),
        ({"tasks": ["webshop/1k/synthetic/1"]}, "webshop has no task 'webshop/1k/synthetic/1'"),
    ],
)
def test_invalid_env_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        gym.make("CoEvolve-WebShop-v0", **arguments)


def test_the_error_about_a_missing_data_folder_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COEVO_WEBSHOP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(BenchmarkNotInstalled, match=r"not found at .*nowhere.*COEVO_WEBSHOP_DATA"):
        gym.make("CoEvolve-WebShop-v0")


def test_the_error_about_corrupt_data_names_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "items_shuffle_1000.json").write_text("[{")
    (tmp_path / "items_ins_v2_1000.json").write_text("{}")
    monkeypatch.setenv("COEVO_WEBSHOP_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"items_shuffle_1000\.json is not valid JSON"):
        gym.make("CoEvolve-WebShop-v0")


def test_a_task_from_another_catalogue_is_refused() -> None:
    world = TRAIN[0].world.model_copy(update={"digest": "0" * 16})
    env = gym.make("CoEvolve-WebShop-v0")
    with pytest.raises(DataError, match="is not the catalogue that the task was created from"):
        env.reset(options={"task": TRAIN[0].model_copy(update={"world": world})})
    world = TRAIN[0].world.model_copy(update={"catalogue": "1k"})
    with pytest.raises(BenchmarkNotInstalled, match="coevo install webshop --from DIR"):
        env.reset(options={"task": TRAIN[0].model_copy(update={"world": world})})


def test_tasks_share_one_catalogue_object() -> None:
    catalogue = open_catalogue(TRAIN[0].world)  # type: ignore[arg-type]
    assert catalogue is open_catalogue(TRAIN[1].world)  # type: ignore[arg-type]
    assert len(catalogue) >= 1000
    assert len({product.category for product in catalogue}) >= 5


def test_listing_tasks_of_an_empty_data_folder_raises_a_package_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COEVO_WEBSHOP_DATA", str(tmp_path))
    with pytest.raises(CoevoError):
        coevo_gym.tasks("webshop", "train")


def test_a_pickled_list_of_tasks_does_not_contain_the_products(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def write(items: list[object]) -> None:
        (tmp_path / "items_shuffle_1000.json").write_text(json.dumps(items))
        (tmp_path / "items_ins_v2_1000.json").write_text(json.dumps(handmade.ATTRIBUTES))

    write(handmade.ITEMS)
    monkeypatch.setenv("COEVO_WEBSHOP_DATA", str(tmp_path))
    own = split_of(handmade.ITEMS[0]["asin"])
    lists = [coevo_gym.tasks("webshop", own), TRAIN, TRAIN[5:9]]
    stored = [pickle.dumps(tasks) for tasks in lists]
    assert all(b"product_category" not in text and b"Stoneware" not in text for text in stored)
    for tasks, text in zip(lists, stored, strict=True):
        again = pickle.loads(text)
        assert again == tasks
        assert hash(again) == hash(tasks)
        assert list(again) == list(tasks)
        assert copy.deepcopy(tasks) is tasks
    assert len(set(lists)) == len(lists)
    assert TRAIN[5:9] != list(TRAIN[5:9])
    write(handmade.ITEMS[1:])
    with pytest.raises(DataError, match="is not the catalogue that the task was created from"):
        pickle.loads(stored[0])


def test_a_user_supplied_shop_has_solvable_tasks_in_every_split(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A small shop has no test goals of the original, and some goals cannot be fulfilled."""
    options = {
        "": handmade.choices(size=["small", "large"], color=["Red", "navy blue"]),
        "same value": handmade.choices(fit=["small", "large"], size=["small", "large"]),
        "button": handmade.choices(action=["Buy Now", "Reviews", "Search", "< Prev", "8"]),
        "bracket": handmade.choices(size=["8 [wide]", "8"]),
        "empty": handmade.choices(size=["", "8"]),
    }
    items = [
        handmade.item(f"M{number:09}", f"{kind} mug", customization_options=options[kind])
        for number, kind in enumerate([*options] * 8)
    ]
    wanted = {
        item["asin"]: {
            "attributes": ["heavy duty"],
            "instruction": f"Find {item['name']}",
            "instruction_attributes": ["heavy duty"],
        }
        for item in items
    }
    (tmp_path / "items_shuffle.json").write_text(json.dumps(items))
    (tmp_path / "items_ins_v2.json").write_text(json.dumps(wanted))
    monkeypatch.setenv("COEVO_WEBSHOP_DATA", str(tmp_path))
    benchmark, unsolvable = get_benchmark("webshop"), 0
    for split in NATIVE_SPLITS:
        tasks = coevo_gym.tasks("webshop", split)
        assert {split_of(task.scenario) for task in tasks} == {split}
        for task in tasks:
            assert benchmark.replay(task, task.solution).scores[-1] == 1.0, task.instruction
        left = coevo_gym.tasks("webshop", split, "unsolvable")
        assert not {task.id for task in tasks} & {task.id for task in left}
        assert all(benchmark.replay(task, task.solution).scores[-1] < 1 for task in left)
        assert all(find_task("webshop", task.name) == task for task in left[:2])
        unsolvable += len(left)
    assert unsolvable == 8 * (2 + 4 + 1 + 1)
    with pytest.raises(TaskError, match="belongs to the original's data, which has at least 1,000"):
        coevo_gym.tasks("webshop", "test", "official_test")


def test_the_error_about_an_empty_split_explains_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "items_shuffle.json").write_text(json.dumps(handmade.ITEMS))
    (tmp_path / "items_ins_v2.json").write_text(json.dumps(handmade.ATTRIBUTES))
    monkeypatch.setenv("COEVO_WEBSHOP_DATA", str(tmp_path))
    own = split_of(handmade.ITEMS[0]["asin"])
    assert len(coevo_gym.tasks("webshop", own)) == 4
    other = next(split for split in NATIVE_SPLITS if split is not own)
    with pytest.raises(TaskError, match=rf"5 products and 4 goals.* decides .*: .*4 {own}"):
        gym.make("CoEvolve-WebShop-v0", split=str(other))


def test_resets_with_different_seeds_spread_over_the_tasks() -> None:
    env = gym.make("CoEvolve-WebShop-v0", split="val")
    names = {env.reset(seed=int(seed))[1]["task_id"] for seed in np.arange(50)}
    assert len(names) > 40


def test_a_task_with_an_unknown_product_is_refused() -> None:
    verifier = TRAIN[0].verifier.model_copy(update={"asin": "NOPE"})
    with pytest.raises(
        TaskError, match=r"webshop/.* cannot be run: its shop has no product 'NOPE'"
    ):
        make_env("webshop", TRAIN[0].model_copy(update={"verifier": verifier}))


def test_rendering_before_the_first_reset_raises() -> None:
    env = gym.make("CoEvolve-WebShop-v0", render_mode="html")
    with pytest.raises(ResetNeeded):
        env.unwrapped.render()


def test_no_view_contains_the_judged_price() -> None:
    env = make_env("webshop", TRAIN[0])
    for action in TRAIN[0].solution[:2]:
        _, _, _, _, info = env.step(action)
    assert info["webshop.price"] > 0
    assert "webshop.price" not in env.view.info
    assert all("webshop.price" not in turn.info for turn in env.view.history)
