"""No copy of a validation or test task is a training task, whatever it claims."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import coevo_gym
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import CoevoError, ResetNeeded, SplitLeakError, TaskError
from coevo_gym.core.task import NATIVE_SPLITS, Split, Task
from coevo_gym.core.task_file import write_tasks
from coevo_gym.envs.alfworld.goals import RoomGoal
from coevo_gym.envs.alfworld.tasks import goal_of, scenario_of
from coevo_gym.envs.alfworld.world import ALFWorldWorld
from coevo_gym.envs.bfcl.world import BFCLWorld
from coevo_gym.envs.webshop import tasks as webshop_tasks
from coevo_gym.episodes.episode import trajectory_of
from coevo_gym.testing import make_env

HELD_OUT = (Split.VAL, Split.TEST)


OURS = ["webshop", "bfcl", "alfworld", "appworld"]


@pytest.fixture(params=[*OURS, "toy"])
def benchmark(request: pytest.FixtureRequest) -> str:
    if request.param == "appworld":
        request.getfixturevalue("appworld_root")
    return str(request.param)


def relabelled(task: Task, **changes: Any) -> Task:
    return task.model_copy(update={"split": Split.TRAIN, **changes})


def assert_refused(task: Task, folder: Path, match: str = "", **arguments: Any) -> None:
    """Neither ``reset`` nor a file of tasks takes it, and nothing is begun."""
    env_id = get_benchmark(task.benchmark).env_id
    env = gym.make(env_id, disable_env_checker=True, **arguments)
    env.reset(seed=0)
    with pytest.raises(SplitLeakError, match=match or "claims to be a training task"):
        env.reset(options={"task": task})
    with pytest.raises(ResetNeeded):
        trajectory_of(env)
    env.close()
    path = folder / "tasks.jsonl"
    write_tasks(path, [task])
    with pytest.raises(SplitLeakError, match="claims to be a training task"):
        gym.make(env_id, tasks=str(path), **arguments)


@pytest.mark.parametrize("split", HELD_OUT)
def test_a_copy_of_a_held_out_task_is_refused(benchmark: str, split: Split, tmp_path: Path) -> None:
    task = coevo_gym.tasks(benchmark, split)[1]
    copy = relabelled(task, name="mine", solution=(), origin="evolved", subset="evolved")
    assert copy.id == task.id
    assert_refused(copy, tmp_path, f"Refusing to play mine: .* belongs to a {split} task")


@pytest.mark.parametrize("benchmark", OURS, indirect=True)
@pytest.mark.parametrize("split", HELD_OUT)
def test_a_held_out_task_with_a_training_scenario_is_refused(
    benchmark: str, split: Split, tmp_path: Path
) -> None:
    task = coevo_gym.tasks(benchmark, split)[0]
    scenario = coevo_gym.tasks(benchmark, Split.TRAIN)[0].scenario
    assert_refused(relabelled(task, scenario=scenario), tmp_path)
    words = {"scenario": scenario, "instruction": f"{task.instruction} Please"}
    assert_refused(relabelled(task, **words), tmp_path)


def test_a_held_out_task_with_an_unknown_scenario_is_refused(
    benchmark: str, tmp_path: Path
) -> None:
    task = coevo_gym.tasks(benchmark, Split.TEST)[0]
    copy = relabelled(task, scenario="nowhere")
    with pytest.raises((SplitLeakError, TaskError)):
        make_env(benchmark, copy)
    path = tmp_path / "tasks.jsonl"
    write_tasks(path, [copy])
    with pytest.raises((SplitLeakError, TaskError)):
        gym.make(get_benchmark(benchmark).env_id, tasks=str(path))


def assert_every_side_is_known(benchmark: str, tasks: Sequence[Task]) -> None:
    side_of = get_benchmark(benchmark).side_of
    assert [task.name for task in tasks if side_of(task) is not task.split] == []


def test_native_tasks_belong_to_the_split_they_name(benchmark: str) -> None:
    for split in NATIVE_SPLITS:
        assert_every_side_is_known(benchmark, coevo_gym.tasks(benchmark, split)[:200])


def test_held_out_tasks_can_be_played_under_their_own_split(benchmark: str) -> None:
    for split in HELD_OUT:
        task = coevo_gym.tasks(benchmark, split)[0]
        env = make_env(benchmark, task)
        assert env.task == task
        env.close()


# Official data.


def test_original_test_goals_are_refused_even_for_training_products(
    official_data: Path, tmp_path: Path
) -> None:
    """Products of the original's test goals are also training products, but its goals are not."""
    train = coevo_gym.tasks("webshop", "train")
    assert_every_side_is_known("webshop", train[:300])
    tasks = [
        task
        for task in coevo_gym.tasks("webshop", "test", "official_test")
        if webshop_tasks.split_of(task.scenario) is Split.TRAIN
    ]
    assert_every_side_is_known("webshop", tasks[:50])
    assert_refused(relabelled(tasks[0]), tmp_path)


def test_official_validation_games_are_refused_even_in_training_scenes(
    official_games: Path, tmp_path: Path
) -> None:
    """The scenes of validation games are training scenes; the games are not."""
    for split in NATIVE_SPLITS:
        assert_every_side_is_known("alfworld", coevo_gym.tasks("alfworld", split)[::7])
    seen = coevo_gym.tasks("alfworld", "val")[3]
    world = seen.world
    assert isinstance(world, ALFWorldWorld)
    assert get_benchmark("alfworld").split_of(seen.scenario) is Split.TRAIN
    assert_refused(relabelled(seen), tmp_path)
    spelled_out = world.model_copy(update={"goal": goal_of(world)})
    assert_refused(relabelled(seen, world=spelled_out), tmp_path)
    wish = RoomGoal(kind="pick_and_place_simple", object="Mug", receptacle="SideTable")
    for other in (world, coevo_gym.tasks("alfworld", "train")[0].world):
        scenario = scenario_of(other.game)
        wished = other.model_copy(update={"goal": wish})
        task = relabelled(seen, scenario=scenario, world=wished)
        side = Split.VAL if other is world else Split.TRAIN
        assert get_benchmark("alfworld").side_of(task) is side


# What is alike, written otherwise.


def test_a_held_out_bfcl_task_with_a_reordered_config_is_refused(tmp_path: Path) -> None:
    task = coevo_gym.tasks("bfcl", "test")[0]
    assert isinstance(task.world, BFCLWorld)
    config = json.loads(task.world.config)
    turned = json.dumps(dict(reversed(config.items())), indent=1)
    world = task.world.model_copy(update={"config": turned, "turns": ("Hello",)})
    scenario = coevo_gym.tasks("bfcl", "train")[0].scenario
    assert_refused(relabelled(task, world=world, scenario=scenario), tmp_path)
    world = task.world.model_copy(update={"config": "{}"})
    assert_refused(relabelled(task, world=world, scenario=scenario), tmp_path)


def test_each_bfcl_scheme_defines_its_own_split(tmp_path: Path) -> None:
    """Under AgentEvolver's scheme the first hundred numbers train, and the others validate."""
    held_out = coevo_gym.tasks("bfcl", "test")
    early = next(task for task in held_out if int(task.scenario.rpartition("_")[2]) < 100)
    env = make_env("bfcl", relabelled(early), scheme="agentevolver")
    assert env.task.id == early.id
    assert_refused(relabelled(early), tmp_path)
    train = coevo_gym.tasks("bfcl", "train")
    late = next(task for task in train if int(task.scenario.rpartition("_")[2]) >= 100)
    assert_refused(late, tmp_path, scheme="agentevolver")


def test_the_split_check_does_not_list_all_native_tasks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Making an env of a file, and each reset, take no look at all held-out tasks."""
    tasks = coevo_gym.tasks("webshop", "train")[:3]
    path = tmp_path / "tasks.jsonl"
    write_tasks(path, tasks)

    def fail_if_called(*_: object) -> Sequence[Task]:
        raise AssertionError("all native tasks were asked for")

    monkeypatch.setattr(webshop_tasks, "native_tasks", fail_if_called)
    env = gym.make("CoEvolve-WebShop-v0", tasks=str(path))
    for task in tasks:
        assert env.reset(options={"task": task})[1]["task_id"] == task.id


def test_the_error_for_a_malformed_task_names_the_task() -> None:
    task = coevo_gym.tasks("bfcl", "train")[0]
    with pytest.raises(CoevoError, match="mine cannot be run: BFCL has no scenario 'base_1'"):
        make_env("bfcl", relabelled(task, scenario="base_1", name="mine"))
    task = coevo_gym.tasks("alfworld", "train")[0]
    world = task.world.model_copy(update={"game": "nonsense"})
    with pytest.raises(TaskError, match=r"cannot be run: ALFWorld has no built-in game 'nonse"):
        make_env("alfworld", relabelled(task, world=world))
