"""The env: official walkthroughs, what an episode shows, splits."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import coevo_gym
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import BenchmarkNotInstalled, ConfigError, ResetNeeded, TaskError
from coevo_gym.core.evolution import Round
from coevo_gym.core.task import NATIVE_SPLITS, Split, Task
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.explorer import ScriptedExplorer
from coevo_gym.curricula.signals import sequence_pattern
from coevo_gym.envs.alfworld.builtin import BUILTIN_SPLIT
from coevo_gym.envs.alfworld.engine.game import NOTHING
from coevo_gym.envs.alfworld.goals import KINDS, PICK, RoomGoal
from coevo_gym.envs.alfworld.tasks import goal_of, is_held_out_copy, scenario_of, split_of
from coevo_gym.envs.alfworld.world import ALFWorldWorld
from coevo_gym.testing import make_env, replay

ENV_ID = "CoEvolve-ALFWorld-v0"
ALFWORLD = get_benchmark("alfworld")
TRAIN = coevo_gym.tasks("alfworld", "train", "builtin")


def task_of(kind: str) -> Task:
    return next(task for task in TRAIN if goal_of(world_of(task)).kind == kind)


def world_of(task: Task) -> ALFWorldWorld:
    assert isinstance(task.world, ALFWorldWorld)
    return task.world


OBSERVED = {
    ("val", 10): "480718652018e15f",
    ("test", 10): "826c444e3fc08c71",
    ("val", 140): "af9f571907ac6a1a",
    ("test", 134): "60bcc1d95a976678",
}
"""Hashes of all that official walkthroughs show, by split and number of games.

They were taken on Python 3.11, where TextWorld's own env shows the same, and hold on every Python.
"""


def assert_walkthroughs_win(tasks: Sequence[Task], split: str) -> None:
    """Each ends in success with its last command, and shows what it shows on every Python."""
    env = gym.make(ENV_ID, split=split)
    digest = hashlib.sha256()
    for task in tasks:
        observation, info = env.reset(options={"task": task})
        digest.update("\0".join([observation, *info["admissible"]]).encode())
        for number, command in enumerate(task.solution, start=1):
            observation, reward, terminated, truncated, info = env.step(command)
            digest.update("\0".join([observation, *info["admissible"]]).encode())
            assert info["action_valid"], (task.name, command)
            assert terminated == (number == len(task.solution)), task.name
        assert (reward, truncated, info["success"]) == (1.0, False, True)
        assert info["alfworld.goal_conditions"] == 1.0
    env.close()
    assert digest.hexdigest()[:16] == OBSERVED[split, len(tasks)]


@pytest.mark.parametrize("split", ["val", "test"])
def test_official_walkthroughs_win(split: str, official_games: Path) -> None:
    assert_walkthroughs_win(coevo_gym.tasks("alfworld", split)[::14][:10], split)


@pytest.mark.slow
@pytest.mark.parametrize(("split", "n"), [("val", 140), ("test", 134)])
def test_all_official_walkthroughs_win(split: str, n: int, official_games: Path) -> None:
    tasks = coevo_gym.tasks("alfworld", split)
    assert len({task.id for task in tasks}) == n
    assert_walkthroughs_win(tasks, split)


def test_official_splits_have_the_documented_sizes_and_scenes(official_games: Path) -> None:
    sizes = {split: len(coevo_gym.tasks("alfworld", split)) for split in NATIVE_SPLITS}
    assert sizes == {"train": 3553, "val": 140, "test": 134}
    assert len(coevo_gym.tasks("alfworld", "train", "valid_train")) == 200
    tasks = {split: coevo_gym.tasks("alfworld", split) for split in NATIVE_SPLITS}
    scenes = {split: {task.scenario for task in each} for split, each in tasks.items()}
    assert len(scenes[Split.TEST]) == 4
    assert scenes[Split.TEST].isdisjoint(scenes[Split.TRAIN] | scenes[Split.VAL])
    assert scenes[Split.VAL] <= scenes[Split.TRAIN]  # seen, as its name says
    with pytest.raises(TaskError, match="valid_seen belongs to split val"):
        coevo_gym.tasks("alfworld", "train", "valid_seen")


def test_a_copy_of_an_evaluation_game_is_recognised(official_games: Path) -> None:
    seen = coevo_gym.tasks("alfworld", "val")[3]
    assert is_held_out_copy(world_of(seen))
    assert is_held_out_copy(world_of(seen).model_copy(update={"goal": goal_of(world_of(seen))}))
    other = RoomGoal(kind=PICK, object="Mug", receptacle="SideTable")
    assert not is_held_out_copy(world_of(seen).model_copy(update={"goal": other}))
    assert not is_held_out_copy(world_of(TRAIN[0]))


def test_built_in_games_are_used_if_official_ones_are_missing() -> None:
    tasks = {split: coevo_gym.tasks("alfworld", split) for split in NATIVE_SPLITS}
    assert {task.subset for group in tasks.values() for task in group} == {"builtin"}
    assert sum(map(len, tasks.values())) >= 200
    assert len({task.scenario for group in tasks.values() for task in group}) >= 20
    for split, group in tasks.items():
        assert {split_of(task.scenario) for task in group} == {split}
        assert {goal_of(world_of(task)).kind for task in group} == set(KINDS)
    with pytest.raises(BenchmarkNotInstalled, match="coevo install alfworld"):
        coevo_gym.tasks("alfworld", "val", "valid_seen")


def test_an_evolution_round_finds_tasks_without_official_games() -> None:
    evolver = GatedEvolver(ALFWORLD, ScriptedExplorer(ALFWORLD), native=TRAIN)
    result = evolver.run(Round.unguided(4, seed=1))
    assert len(result.accepted) == 4
    for task in result.accepted:
        assert split_of(task.scenario) is task.split is Split.TRAIN
        assert replay(task).success
        assert not replay(task, ()).success


def test_each_scene_belongs_to_one_split() -> None:
    assert split_of("FloorPlan308") is Split.TEST
    assert split_of("FloorPlan1") is Split.TRAIN
    scene, side = next(iter(BUILTIN_SPLIT.items()))
    assert split_of(f"builtin/FloorPlan{scene}") is side
    assert scenario_of("train/pick_and_place_simple-Mug-None-Desk-308/trial_T1") == "FloorPlan308"
    for unknown in ("FloorPlan", "builtin/FloorPlan999", "kitchen", "other/FloorPlan1"):
        with pytest.raises(TaskError, match="no"):
            split_of(unknown)


@pytest.mark.parametrize(
    "command", ["fly to moon", "", "go to", "GO TO DESK 1", "help me", "{1+1}"]
)
def test_an_inadmissible_command_is_answered_counted_and_flagged(command: str) -> None:
    env = make_env("alfworld", TRAIN[0])
    before = env.view.info["admissible"]
    observation, reward, terminated, truncated, info = env.step(command)
    assert (observation, reward, terminated, truncated) == (NOTHING, 0.0, False, False)
    assert (info["action_valid"], info["error_kind"], info["step"]) == (False, "not_admissible", 1)
    assert info["admissible"] == before


@pytest.mark.parametrize("missing", [0, 1])
def test_success_on_the_last_step_terminates_instead_of_truncating(missing: int) -> None:
    task = TRAIN[0]
    env = make_env("alfworld", task, max_steps=len(task.solution) - missing)
    for command in task.solution[: env.max_steps]:
        _, reward, terminated, truncated, info = env.step(command)
    won = missing == 0
    assert (reward, terminated, truncated) == (float(won), won, not won)
    assert info["end_reason"] == ("solved" if won else "max_steps")


def test_an_episode_has_fifty_steps_by_default() -> None:
    assert len(replay(TRAIN[0], ()).steps) == 50


@pytest.mark.parametrize("flag", ["no", 1, None])
def test_an_aliases_setting_that_is_no_boolean_is_refused(flag: object) -> None:
    with pytest.raises(ConfigError, match=f"aliases must be True or False, got {flag!r}"):
        gym.make(ENV_ID, aliases=flag)


@pytest.mark.parametrize("older", ["put {} in/on {}", "put {} on {}", "put {} in {}"])
def test_commands_of_older_versions_work_only_with_aliases(older: str) -> None:
    task = task_of(PICK)
    *way, last = task.solution
    thing, place = last.removeprefix("move ").split(" to ")
    env = gym.make(ENV_ID, aliases=True).unwrapped
    strict = gym.make(ENV_ID).unwrapped
    for variant in (env, strict):
        variant.reset(options={"task": task})
        for command in way:
            variant.step(command)
    assert strict.step(older.format(thing, place))[0] == NOTHING
    assert env.step(older.format(thing, place))[4]["success"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_share_of_goal_conditions_reaches_one_only_at_the_end(kind: str) -> None:
    env, task = make_env("alfworld", task_of(kind)), task_of(kind)
    shares = [env.reset(options={"task": task})[1]["alfworld.goal_conditions"]]
    for command in task.solution:
        shares.append(env.step(command)[4]["alfworld.goal_conditions"])
    assert shares[0] == 0.0
    assert shares[-1] == 1.0
    assert max(shares[:-1]) < 1.0
    assert "alfworld.goal_conditions" not in env.view.info
    assert env.view.info["alfworld.task_type"] == kind


def test_a_behaviour_pattern_is_the_task_type_and_the_verbs() -> None:
    task = task_of(PICK)
    trajectory = replay(task, [task.solution[0], "fly", *task.solution[1:]])
    pattern = sequence_pattern(trajectory, ALFWORLD.symbol)  # type: ignore[arg-type]
    assert pattern[:3] == (PICK, "goto", "!")
    assert set(pattern[3:]) <= {"open", "take", "goto", "put"}


def test_resetting_to_an_impossible_goal_raises_and_leaves_no_episode() -> None:
    env = make_env("alfworld", TRAIN[0])
    goal = RoomGoal(kind=PICK, object="Dragon", receptacle="Shelf")
    world = world_of(TRAIN[1]).model_copy(update={"goal": goal})
    with pytest.raises(TaskError, match="either impossible or already met"):
        env.reset(options={"task": TRAIN[1].model_copy(update={"world": world})})
    with pytest.raises(ResetNeeded):
        env.step(TRAIN[0].solution[0])


def test_two_envs_do_not_affect_each_other() -> None:
    def alone(task: Task) -> list[Any]:
        env = make_env("alfworld", task)
        return [env.step(command)[0] for command in task.solution]

    one, other = task_of(KINDS[0]), task_of(KINDS[2])
    expected = alone(one), alone(other)
    envs = make_env("alfworld", one), make_env("alfworld", other)
    actual: tuple[list[Any], list[Any]] = ([], [])
    for step in range(max(len(one.solution), len(other.solution))):
        for env, task, seen in zip(envs, (one, other), actual, strict=True):
            if step < len(task.solution):
                seen.append(env.step(task.solution[step])[0])
    assert actual == expected
