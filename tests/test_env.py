"""The env shell, on the toy benchmark."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import coevo_gym
from coevo_gym.core.errors import (
    ConfigError,
    EnvBackendError,
    ResetNeeded,
    SplitLeakError,
    TaskError,
)
from coevo_gym.core.task import FrozenDict, Task
from coevo_gym.core.task_file import write_tasks
from coevo_gym.core.trajectory import EndReason, EvalTrajectory, PastStep, Trajectory, View
from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.frame import Frame
from coevo_gym.episodes.episode import eval_trajectory_of, trajectory_of
from coevo_gym.testing import make_env
from tests.toy import ToyEnv

TRAIN = coevo_gym.tasks("toy", "train")
VAL = coevo_gym.tasks("toy", "val")


def test_a_solved_episode_is_rewarded_at_its_end_and_recorded() -> None:
    env = make_env("toy", TRAIN[0])
    for action in TRAIN[0].solution[:-1]:
        _, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert (info["end_reason"], info["score"], info["success"]) == ("", -1.0, False)
    _, reward, terminated, truncated, info = env.step("done")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert (info["end_reason"], info["score"], info["success"]) == ("solved", 1.0, True)
    record = trajectory_of(env, group_id="g", policy_version=3)
    assert record.actions == TRAIN[0].solution
    assert record.steps[-1].terminated
    assert (record.success, record.end_reason) == (True, EndReason.SOLVED)
    assert (record.group_id, record.policy_version) == ("g", 3)


def test_an_episode_cut_at_max_steps_is_truncated_and_graded() -> None:
    env = make_env("toy", TRAIN[0], max_steps=2, reward_mode="score")
    env.step(TRAIN[0].solution[0])
    _, reward, terminated, truncated, info = env.step("nonsense")
    assert (terminated, truncated, info["end_reason"]) == (False, True, "max_steps")
    assert reward == info["score"] == pytest.approx(1 / 6)


def test_a_win_on_the_last_allowed_step_is_terminated() -> None:
    env = make_env("toy", TRAIN[0], max_steps=len(TRAIN[0].solution))
    for action in TRAIN[0].solution:
        _, _, terminated, truncated, info = env.step(action)
    assert (terminated, truncated, info["end_reason"]) == (True, False, "solved")


def test_an_episode_is_graded_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    grade = ToyEnv._grade
    monkeypatch.setattr(ToyEnv, "_grade", lambda self, v: calls.append(1) or grade(self, v))
    env = make_env("toy", TRAIN[0])
    assert not calls
    env.step("done")
    with pytest.raises(ResetNeeded):
        env.step("done")
    assert len(calls) == 1


def test_a_view_contains_no_task_and_no_outcome() -> None:
    env = make_env("toy", TRAIN[0])
    first = env.view
    env.step("press red")
    view = env.view
    assert {field.name for field in dataclasses.fields(View)} == {
        "instruction", "observation", "info", "history", "cues", "episode",
    }  # fmt: skip
    assert view.cues == ()
    assert view.episode == ""  # code that plays episodes adds an opaque id
    assert view.history == (PastStep(first.observation, "press red", info=first.info),)
    assert (first.info["step"], view.info["step"]) == (0, 1)
    assert not {"task_id", "score", "success", "end_reason"} & set(view.info)


def test_lone_surrogates_in_info_are_replaced() -> None:
    class Quotes(ToyEnv):
        def _act(self, action: str) -> Frame:
            frame = super()._act(action)
            return dataclasses.replace(
                frame, extras=FrozenDict({**frame.extras, "toy.text": "\ud800"})
            )

    env = Quotes()
    env.reset(options={"task": TRAIN[0]})
    info = env.step("press red")[4]
    assert info["toy.text"] == "\ufffd"


def test_the_seed_picks_the_task_and_reset_options_override_it() -> None:
    env = gym.make("Toy-v0")
    picks = {env.reset(seed=seed)[1]["task_id"] for seed in range(20)}
    assert len(picks) > 10
    assert env.reset(seed=1)[1] == env.reset(seed=1)[1]
    assert env.reset(options={"task": TRAIN[5]})[1]["task_id"] == TRAIN[5].id
    assert env.reset(options={"task_id": TRAIN[6].name})[1]["task_id"] == TRAIN[6].id
    assert env.reset(options={"task_id": TRAIN[7].id})[1]["task_id"] == TRAIN[7].id


def test_make_accepts_tasks_by_name_and_from_a_file(tmp_path: Path) -> None:
    env = gym.make("Toy-v0", tasks=[TRAIN[3].name])
    assert env.reset(seed=5)[1]["task_id"] == TRAIN[3].id
    evolved = TRAIN[3].model_copy(update={"name": "", "origin": "evolved"})
    write_tasks(tmp_path / "tasks.jsonl", [evolved])
    env = gym.make("Toy-v0", tasks=str(tmp_path / "tasks.jsonl"))
    assert env.reset(options={"task_id": evolved.name})[1]["task_id"] == evolved.id


def test_evaluation_episodes_have_a_separate_type() -> None:
    env = make_env("toy", VAL[0])
    env.step("done")
    assert type(eval_trajectory_of(env)) is EvalTrajectory
    assert not isinstance(eval_trajectory_of(env), Trajectory)
    with pytest.raises(SplitLeakError, match="evaluation only"):
        trajectory_of(env)


def test_engine_text_is_cleaned_and_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyEnv, "_act", lambda self, a: Frame("\ud800" + "x" * 200_000))
    env = make_env("toy")
    observation = env.step("anything")[0]
    assert env.observation_space.contains(observation)
    assert observation.endswith("characters cut]")


def test_render_returns_text_in_ansi_mode_and_none_otherwise() -> None:
    env = make_env("toy", TRAIN[0], render_mode="ansi")
    env.step("done")
    text = env.render()
    assert text is not None
    assert "failed, score 0.00" in text
    assert make_env("toy").render() is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"split": "dev"}, TaskError, "Unknown split 'dev'. Choose one of: train, val, test"),
        ({"subset": "hard"}, TaskError, "no subset 'hard'"),
        ({"tasks": ["toy/nothing"]}, TaskError, "`coevo tasks toy` lists all names"),
        ({"tasks": []}, TaskError, "contains no tasks"),
        ({"tasks": [VAL[0].name]}, TaskError, "is a val task.*Pass split='val'"),
        ({"tasks": "/nowhere.jsonl"}, TaskError, "Cannot read tasks from /nowhere.jsonl: No such"),
        ({"max_steps": 0}, ConfigError, "max_steps must be a positive int, got 0"),
        ({"max_steps": -3}, ConfigError, "max_steps must be a positive int, got -3"),
        ({"max_steps": 2.5}, ConfigError, "max_steps must be a positive int, got 2.5"),
        ({"max_steps": True}, ConfigError, "max_steps must be a positive int, got True"),
        ({"max_steps": "3"}, ConfigError, "max_steps must be a positive int, got '3'"),
        ({"max_steps": float("nan")}, ConfigError, "max_steps must be a positive int, got nan"),
        ({"tasks": 5}, ConfigError, "tasks must be a list of task.*, got 5 \\(int\\)"),
        ({"tasks": [5]}, ConfigError, "tasks must be a list of task.*, got \\[5\\]"),
        ({"tasks": [None]}, ConfigError, "tasks must be a list of task.*, got \\[None\\]"),
        ({"tasks": TRAIN}, ConfigError, r'tasks must be .*reset\(options=\{"task": task\}\)'),
        ({"tasks": TRAIN[0]}, ConfigError, "tasks must be a list .*\\(Task\\)"),
        ({"tasks": Path("a.jsonl")}, ConfigError, "JSONL file of tasks, got .*Path"),
        ({"reward_mode": "dense"}, ConfigError, "Unknown reward_mode 'dense'. Choose one of: succ"),
    ],
)  # fmt: skip
def test_invalid_make_arguments_are_refused(
    arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ToyEnv(**arguments)  # type: ignore[arg-type]
    with pytest.raises(error, match=message):
        gym.make("Toy-v0", **arguments)
    with pytest.raises(error, match=message):
        gym.make_vec("Toy-v0", num_envs=2, **arguments)


@pytest.mark.parametrize("limit", [2.5, True, "3", 0, [3]])
def test_max_episode_steps_must_be_a_positive_int(limit: object) -> None:
    for make in (gym.make, gym.make_vec):
        with pytest.raises((ValueError, TypeError), match=r"max_(episode_)?steps.* (actual|got)"):
            make("Toy-v0", max_episode_steps=limit)


def test_max_steps_accepts_a_numpy_int() -> None:
    env = ToyEnv(max_steps=np.int64(2))  # type: ignore[arg-type]
    assert (env.max_steps, type(env.max_steps)) == (2, int)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"task": TRAIN[0].model_copy(update={"benchmark": "bfcl"})}, TaskError, "belongs to bfcl"),
        ({"task": TRAIN[0].name}, TaskError, 'must be a Task, got str. Pass.*"task_id"'),
        ({"task_id": "toy/nothing"}, TaskError, "toy has no task 'toy/nothing'"),
        ({"tasks": 1}, ConfigError, "got keys: \\['tasks'\\]"),
    ],
)
def test_invalid_reset_options_are_refused(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    env = make_env("toy")
    with pytest.raises(error, match=message):
        env.reset(options=options)


def test_the_error_for_a_bad_task_file_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(TRAIN[0].to_json() + "\n{oops\n")
    with pytest.raises(TaskError, match=r"tasks\.jsonl, line 2: The text is not valid task JSON"):
        ToyEnv(tasks=str(path))


def test_a_task_file_may_contain_unicode_line_separators(tmp_path: Path) -> None:
    task = TRAIN[0].model_copy(update={"instruction": "a\u2028b\u0085c"})
    write_tasks(tmp_path / "tasks.jsonl", [task])
    env: TaskEnv = ToyEnv(tasks=str(tmp_path / "tasks.jsonl"))
    assert env.reset(seed=0)[1]["task_id"] == task.id


def test_an_action_must_be_a_string() -> None:
    with pytest.raises(TypeError, match="An action must be a string, got 3"):
        make_env("toy").step(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("played", [1, 4])
def test_a_failed_reset_leaves_no_running_episode(
    monkeypatch: pytest.MonkeyPatch, played: int
) -> None:
    env = make_env("toy", TRAIN[0])
    for action in TRAIN[0].solution[:played]:
        env.step(action)

    def begin(self: ToyEnv, world: object, instruction: str, rng: object) -> Frame:
        raise KeyError("this world cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(ToyEnv, "_begin", begin)
        with pytest.raises(KeyError, match="cannot be read"):
            env.reset(options={"task": TRAIN[1]})
    with pytest.raises(ResetNeeded):
        env.step(TRAIN[0].solution[0])
    for read in ("task", "view", "episode_record"):
        with pytest.raises(ResetNeeded):
            getattr(env, read)()
    for make in (trajectory_of, eval_trajectory_of):
        with pytest.raises(ResetNeeded):
            make(env)
    env.reset(options={"task": TRAIN[1]})
    assert env.task == TRAIN[1]
    assert not env.view.history


@pytest.mark.parametrize("hook", ["_act", "_grade"])
def test_an_episode_whose_engine_fails_is_over_and_has_no_outcome(
    monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    env = make_env("toy", TRAIN[0])
    env.step(TRAIN[0].solution[0])

    def fail(self: ToyEnv, argument: object) -> None:
        raise EnvBackendError("the engine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(ToyEnv, hook, fail)
        with pytest.raises(EnvBackendError, match="the engine is gone"):
            env.step("done")
    assert len(env.view.history) == 1
    for use in (lambda: env.step("done"), lambda: env.cut(EndReason.MAX_TOKENS)):
        with pytest.raises(ResetNeeded):
            use()
    for make in (trajectory_of, eval_trajectory_of):
        with pytest.raises(ResetNeeded, match="was lost to an engine failure"):
            make(env)


def test_the_error_for_an_unknown_benchmark_lists_the_registered_ones() -> None:
    with pytest.raises(TaskError, match=r"Unknown benchmark 'atari'\. Registered: .*toy"):
        coevo_gym.tasks("atari")


def test_the_id_of_a_task_does_not_depend_on_its_split_and_name() -> None:
    claimed: Task = VAL[0].model_copy(update={"split": "train", "name": "mine"})
    assert claimed.id == VAL[0].id
