"""What people did in training tasks, and the warm-up that imitates it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from coevo_gym import tasks
from coevo_gym.agents.choice import ChoiceAgent
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import ConfigError, SplitLeakError, StoreError, TaskError
from coevo_gym.core.task import Split, Task
from coevo_gym.core.task_file import read_tasks, write_tasks
from coevo_gym.core.trajectory import ChoiceDecision, Trajectory
from coevo_gym.envs.bfcl.choices import split_calls
from coevo_gym.envs.webshop import BENCHMARK
from coevo_gym.episodes import EnvPool
from coevo_gym.runs.assembly import Assembly
from coevo_gym.runs.config import load_config
from coevo_gym.runs.manifest import check_changes, make_manifest
from coevo_gym.runs.tasks.demonstrations import keep_demonstration, read_demonstrations
from coevo_gym.runs.tasks.importing import Importer
from coevo_gym.store.folder import RunFolder
from coevo_gym.trainers.demonstrations import demonstrate
from coevo_gym.view.play.episodes import EpisodeManager
from coevo_gym.view.play.game import PlayedGame
from coevo_gym.view.play.source import run_source
from tests import toy

TASK, OTHER = tasks("webshop", "train")[:2]
HELD_OUT = tasks("webshop", "val")[0]
NOBODY: Any = None
"""The policy of an agent that only demonstrates."""
DETOUR = ("click[description]", "click[< prev]")


def way(task: Task) -> tuple[str, ...]:
    """What a person does who looks closer before buying."""
    return (*task.solution[:-1], *DETOUR, task.solution[-1])


def played(task: Task, actions: Sequence[str]) -> Trajectory:
    with closing(gym.make("CoEvolve-WebShop-v0", disable_env_checker=True)) as env:
        game = PlayedGame(env, task)
        game.begin()
        for action in actions:
            assert game.act(action) is None
    assert game.played is not None
    assert game.played.training is not None
    return game.played.training


def config_of(path: Path, **sets: object) -> dict[str, object]:
    return {"warmup.demonstrations": str(path), "warmup.n_tasks": 5, **sets}


def test_a_demonstration_is_stored_as_a_task_with_its_actions(tmp_path: Path) -> None:
    path = tmp_path / "new" / "shown.jsonl"
    keep_demonstration(path, TASK, played(TASK, TASK.solution), BENCHMARK)
    keep_demonstration(path, OTHER, played(OTHER, OTHER.solution), BENCHMARK)
    keep_demonstration(path, TASK, played(TASK, way(TASK)), BENCHMARK)
    first, second = read_tasks(path)
    assert (first.id, second.id) == (OTHER.id, TASK.id)
    assert second.solution == way(TASK)
    assert second.verifier == TASK.verifier
    assert second.provenance["kind"] == "demonstration"
    env = gym.make("CoEvolve-WebShop-v0", tasks=str(path), disable_env_checker=True)
    assert [task.id for task in env.unwrapped.tasks] == [OTHER.id, TASK.id]  # type: ignore[attr-defined]
    env.close()


def test_the_warm_up_imitates_the_actions_of_demonstrations(tmp_path: Path) -> None:
    path = tmp_path / "shown.jsonl"
    plain = Assembly(load_config(None, sets={"warmup.n_tasks": 5}).config)
    plain_tasks = plain.warmup_tasks()
    keep_demonstration(path, TASK, played(TASK, way(TASK)), BENCHMARK)
    known = plain_tasks[2]
    keep_demonstration(path, known, played(known, way(known)), BENCHMARK)
    config = load_config(None, sets=config_of(path)).config
    assembly = Assembly(config)
    warmup_tasks = assembly.warmup_tasks()
    assert [task.id for task in warmup_tasks[:2]] == [TASK.id, known.id]
    rest = [task.id for task in plain_tasks if task.id not in (TASK.id, known.id)]
    assert [task.id for task in warmup_tasks[2:]] == rest
    with closing(assembly.make_env_pool()) as envs:
        agent = assembly.agent(assembly.policy)
        demonstrations = demonstrate(warmup_tasks[:2], envs, BENCHMARK, agent, seed=0)
    assert demonstrations.unsolved == 0
    for task, decisions in zip(warmup_tasks[:2], demonstrations.decisions, strict=True):
        done = [d.choices[d.index] for d in decisions if isinstance(d, ChoiceDecision)]
        assert [action for action in done if action in DETOUR] == list(DETOUR)
        assert len(done) + demonstrations.skipped >= len(task.solution)


def test_a_run_with_changed_demonstrations_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "shown.jsonl"
    keep_demonstration(path, TASK, played(TASK, TASK.solution), BENCHMARK)
    resolved = load_config(None, sets=config_of(path))
    manifest = make_manifest(resolved, task_sets=Assembly(resolved.config).task_sets)
    assert set(manifest["task_sets"]) == {"training", "held-out", "demonstrated"}
    again = Assembly(resolved.config).task_sets
    assert check_changes(manifest, resolved.config, again) == []
    keep_demonstration(path, OTHER, played(OTHER, OTHER.solution), BENCHMARK)
    with pytest.raises(StoreError, match="demonstrated tasks differ from those"):
        check_changes(manifest, resolved.config, Assembly(resolved.config).task_sets)


def test_held_out_tasks_never_become_demonstrations(tmp_path: Path) -> None:
    path = tmp_path / "shown.jsonl"
    record = replace(played(TASK, TASK.solution), task_id=HELD_OUT.id)
    with pytest.raises(SplitLeakError, match="is a val task"):
        keep_demonstration(path, HELD_OUT, record, BENCHMARK)
    claimed = HELD_OUT.model_copy(update={"split": Split.TRAIN})
    with pytest.raises(SplitLeakError, match="claims to be a training task"):
        keep_demonstration(path, claimed, record, BENCHMARK)
    assert not path.exists()
    for leaked in (HELD_OUT, claimed):
        write_tasks(path, [leaked])
        with pytest.raises(SplitLeakError, match="Refusing to imitate"):
            Assembly(load_config(None, sets=config_of(path)).config).warmup_tasks()


def test_demonstrations_from_scenarios_set_aside_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "shown.jsonl"
    sets = config_of(path, **{"benchmark.hold_out": 0.5})
    aside = Assembly(load_config(None, sets={"benchmark.hold_out": 0.5}).config)
    task = next(
        task for task in tasks("webshop", "train") if aside.benchmark.side_of(task) != "train"
    )
    keep_demonstration(path, task, played(task, task.solution), BENCHMARK)
    with pytest.raises(SplitLeakError, match="Refusing to imitate"):
        Assembly(load_config(None, sets=sets).config).warmup_tasks()


def test_an_invalid_demonstration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shown.jsonl"
    with pytest.raises(ConfigError, match="Only an episode that has solved"):
        keep_demonstration(path, TASK, played(TASK, ["search[dress]"] * 15), BENCHMARK)
    with pytest.raises(ConfigError, match="belongs to a different task"):
        keep_demonstration(path, OTHER, played(TASK, TASK.solution), BENCHMARK)
    with pytest.raises(TaskError, match="Cannot read tasks"):
        read_demonstrations(path, BENCHMARK)
    write_tasks(path, toy.BENCHMARK.tasks(Split.TRAIN)[:1])
    with pytest.raises(ConfigError, match="a task from toy"):
        read_demonstrations(path, BENCHMARK)
    write_tasks(path, [TASK.model_copy(update={"solution": ()})])
    with pytest.raises(ConfigError, match="has no solution"):
        read_demonstrations(path, BENCHMARK)


def test_demonstrations_can_be_imported_as_tasks(tmp_path: Path) -> None:
    path = tmp_path / "shown.jsonl"
    keep_demonstration(path, TASK, played(TASK, way(TASK)), BENCHMARK)
    (judged,) = Importer().judge(path)
    assert judged.task is not None
    assert not set(DETOUR) & set(judged.task.solution)  # it is shortened to what is needed


def test_several_calls_in_one_message_are_imitated_as_separate_decisions(tmp_path: Path) -> None:
    """This holds even if one of the calls fails."""
    bfcl = get_benchmark("bfcl")
    task = next(t for t in tasks("bfcl", "train") if t.name == "bfcl/multi_turn_base_2")
    first = "[cd(folder='nowhere'), cd(folder='documents'), touch(file_name='TeamNotes.txt')]"
    actions = (first, *task.solution[1:])
    with closing(gym.make("CoEvolve-BFCL-v0", disable_env_checker=True)) as env:
        game = PlayedGame(env, task)
        game.begin()
        for action in actions:
            assert game.act(action) is None
    assert game.played is not None
    assert game.played.training is not None
    demonstration = keep_demonstration(tmp_path / "shown.jsonl", task, game.played.training, bfcl)
    assert demonstration.solution == actions
    with closing(EnvPool(lambda: gym.make("CoEvolve-BFCL-v0"))) as envs:
        demonstrations = demonstrate([demonstration], envs, bfcl, ChoiceAgent(NOBODY, bfcl.choices))
    assert demonstrations.unsolved == 0
    assert demonstrations.env_steps == sum(len(split_calls(action)) for action in actions)


def test_demonstrated_actions_outside_the_choices_are_played_unchanged() -> None:
    class FreeCode:
        def demonstration(self, task: Task) -> tuple[str, ...]:
            return ()

    task = toy.BENCHMARK.tasks(Split.TRAIN)[0]
    with closing(EnvPool(toy.ToyEnv)) as envs:
        agent = ChoiceAgent(NOBODY, toy.BENCHMARK.choices)
        demonstrations = demonstrate([task], envs, FreeCode(), agent)  # type: ignore[arg-type]
    assert demonstrations.unsolved == 0
    assert demonstrations.env_steps == len(task.solution)


@pytest.mark.parametrize(
    "call", ["[mv(source='a'), fly(to='b')]", "[cd('a', 'b', 'c')]", "[nothing()]"]
)
def test_calls_that_match_no_function_are_not_split(call: str) -> None:
    assert split_calls(call) == (call,)


def test_an_evolved_task_can_be_played_and_saved_as_a_demonstration(
    finished: Path, tmp_path: Path
) -> None:
    source = run_source(RunFolder(finished))
    manager = EpisodeManager(source, demonstrations=tmp_path / "shown.jsonl")
    task = source.tasks[0]
    state = manager.begin(task.id)
    for step, action in enumerate(task.solution):
        state = manager.act(state["id"], action, step)
    assert state["grade"]["success"]
    assert manager.keep_demonstration(state["id"])["keep"]["kept"]
    assert read_demonstrations(manager.demonstrations, toy.BENCHMARK)[0].origin == "evolved"
    manager.close()
