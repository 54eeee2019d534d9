"""The env, on the real engine and the built-in world."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import pytest

import coevo_gym
from coevo_gym.core.errors import ConfigError, ResetNeeded
from coevo_gym.core.task import NATIVE_SPLITS, Task
from coevo_gym.core.trajectory import EndReason
from coevo_gym.envs.appworld.engine.engine_session import STEP_LIMIT_S
from coevo_gym.envs.appworld.env import AppWorldEnv
from tests.appworld.test_executor import LOGIN

DONE = "apis.supervisor.complete_task()"


@pytest.fixture
def env(root: Path) -> Iterator[AppWorldEnv]:
    wrapper = gym.make("CoEvolve-AppWorld-v0", disable_env_checker=True, max_steps=4)
    yield cast(AppWorldEnv, wrapper.unwrapped)
    wrapper.close()


@pytest.fixture(scope="module")
def tasks(root: Path) -> tuple[Task, ...]:
    return tuple(task for split in NATIVE_SPLITS for task in coevo_gym.tasks("appworld", split))


@pytest.fixture
def task(tasks: tuple[Task, ...]) -> Task:
    return tasks[0]


def test_the_first_observation_has_the_instruction_apps_and_api_docs(
    env: AppWorldEnv, task: Task
) -> None:
    observation, info = env.reset(options={"task": task})
    assert f"Task: {task.instruction}" in observation
    assert "apis.api_docs" in observation
    assert "spotify" in observation.rpartition("Apps: ")[2]
    assert info["appworld.api_calls"] == 0
    assert info["appworld.tests_total"] == -1
    assert env.view.instruction == task.instruction


def test_a_reference_solves_its_task(env: AppWorldEnv, task: Task) -> None:
    env.reset(options={"task": task})
    _, reward, terminated, truncated, info = env.step(task.solution[0])
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["success"]
    assert info["end_reason"] == EndReason.SOLVED
    assert info["appworld.tests_passed"] == info["appworld.tests_total"] > 0
    assert info["appworld.api_calls"] > 1
    with pytest.raises(ResetNeeded):
        env.step(DONE)


@pytest.mark.parametrize("reward_mode", ["success", "shaped"])
def test_completing_a_task_without_work_has_no_reward(
    tasks: tuple[Task, ...], reward_mode: str
) -> None:
    env = gym.make("CoEvolve-AppWorld-v0", reward_mode=reward_mode, disable_env_checker=True)
    for task in tasks[:: len(tasks) // 6]:
        env.reset(options={"task": task})
        _, reward, terminated, _, info = env.step(DONE)
        assert (reward, terminated, info["score"]) == (0.0, True, 0.0), task.name
        assert info["end_reason"] == EndReason.FAILED
    env.close()


def test_variables_persist_between_steps_and_errors_are_observed(
    env: AppWorldEnv, task: Task
) -> None:
    env.reset(options={"task": task})
    observation, *_, info = env.step("Let me see.\n```python\nx = 20 + 1\n```")
    assert observation.strip() == "Execution successful."
    assert (info["error_kind"], info["action_valid"]) == ("", True)
    assert env.step("print(2 * x)")[0].strip() == "42"
    observation, *_, info = env.step("print(x / 0)")
    assert "ZeroDivisionError" in observation
    assert (info["error_kind"], info["action_valid"]) == ("exception", False)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("print(", "syntax"),
        ("", "syntax"),
        ("import subprocess", "unsafe"),
        ("a" + "[0]" * 2900, "syntax"),
        ("raise KeyboardInterrupt", "exception"),
        ("apis.nobody.nothing()", "exception"),
        ("print('\ud800')", ""),
    ],
)
def test_bad_code_is_an_observation(env: AppWorldEnv, task: Task, code: str, kind: str) -> None:
    env.reset(options={"task": task})
    observation, reward, terminated, truncated, info = env.step(code)
    assert info["error_kind"] == kind
    assert (reward, terminated, truncated, info["step"]) == (0.0, False, False, 1)
    observation.encode()


def test_endless_code_is_killed_and_the_episode_continues(root: Path, task: Task) -> None:
    env = gym.make("CoEvolve-AppWorld-v0", step_limit_s=2.0, disable_env_checker=True)
    env.reset(options={"task": task})
    observation, *_, info = env.step("sum(range(10**12))")
    assert info["error_kind"] == "timeout"
    assert "timed out after 2 seconds" in observation
    env.unwrapped.step_limit_s = STEP_LIMIT_S  # type: ignore[attr-defined]
    assert env.step(task.solution[0])[1] == 1.0
    env.close()


def test_an_episode_that_uses_up_its_steps_is_graded(env: AppWorldEnv, task: Task) -> None:
    env.reset(options={"task": task})
    for _ in range(3):
        env.step("x = 1")
    _, reward, terminated, truncated, info = env.step("x = 2")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["end_reason"] == EndReason.MAX_STEPS
    assert info["appworld.tests_total"] > 0


def test_success_on_the_last_step_terminates_instead_of_truncating(
    env: AppWorldEnv, task: Task
) -> None:
    env.reset(options={"task": task})
    for _ in range(3):
        env.step("x = 1")
    _, reward, terminated, truncated, _ = env.step(task.solution[0])
    assert (reward, terminated, truncated) == (1.0, True, False)


def test_out_of_band_data_does_not_prevent_the_grade(env: AppWorldEnv, task: Task) -> None:
    """The episode continues to its end and is graded, also if the step fails."""
    env.reset(options={"task": task})
    code = (
        "import os, socket, sys\n"
        "apps = socket.socket(fileno=os.dup(int(sys.argv[2])))\n"
        "apps.send(b'x', socket.MSG_OOB)"
    )
    env.step(f"exec({code!r})")
    _, reward, terminated, _, info = env.step(DONE)
    assert (reward, terminated, info["end_reason"]) == (0.0, True, EndReason.FAILED)


def test_access_tokens_are_the_same_in_every_run(env: AppWorldEnv, task: Task) -> None:
    outputs = []
    for _ in range(2):
        env.reset(options={"task": task})
        outputs.append(env.step(f"{LOGIN}\nprint(token)")[0])
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 100


def test_no_scenario_has_tasks_in_two_splits(tasks: tuple[Task, ...]) -> None:
    sides = {task.scenario: task.split for task in tasks}
    assert all(sides[task.scenario] is task.split for task in tasks)
    assert {task.split for task in tasks} == set(NATIVE_SPLITS)
    benchmark = coevo_gym.get_benchmark("appworld")
    assert all(benchmark.split_of(scenario) is split for scenario, split in sides.items())
    for task in tasks:
        ast.parse(task.solution[0].removeprefix("```python\n").removesuffix("```"))


@pytest.mark.parametrize("limit", [0, -1.5, math.nan, math.inf, True, "3", None])
def test_an_invalid_step_limit_is_refused(root: Path, limit: Any) -> None:
    message = re.escape(f"step_limit_s must be positive, got {limit!r}")
    with pytest.raises(ConfigError, match=message):
        AppWorldEnv(step_limit_s=limit)


@pytest.mark.parametrize("answer", ["float('nan')", "float('-inf')", "chr(0xd800)"])
def test_an_answer_that_cannot_be_stored_is_a_failed_call(
    env: AppWorldEnv, task: Task, answer: str
) -> None:
    env.reset(options={"task": task})
    observation, _, terminated, _, info = env.step(
        f"apis.supervisor.complete_task(answer={answer})"
    )
    assert "Response status code is 422" in observation
    assert (terminated, info["error_kind"]) == (False, "exception")
    _, reward, terminated, _, info = env.step("apis.supervisor.complete_task(answer='Nan')")
    assert (reward, terminated, info["success"]) == (0.0, True, False)
