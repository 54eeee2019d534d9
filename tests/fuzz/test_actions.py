"""Whatever an agent does, an env answers; and whoever plays after it finds the env as it was."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coevo_gym.core.benchmark import benchmark_specs, get_benchmark
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory_json import trajectory_from_json, trajectory_to_json
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes.episode import trajectory_of
from coevo_gym.testing.fixtures import make_env
from tests.fuzz.grammars import GRAMMARS
from tests.quick import slow_for

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")


STEPS = 10
ENVS = {
    "webshop": {},
    "webshop-original": {"reward_mode": "original"},
    "bfcl": {},
    "bfcl-train": {"mode": "train"},
    "alfworld": {},
    "alfworld-aliases": {"aliases": True},
    "appworld": {"step_limit_s": 2.0, "reward_mode": "shaped"},
}


@pytest.mark.parametrize("name", slow_for(ENVS, "appworld"))
def test_random_actions_do_not_break_an_env(name: str, engine: Callable[[str], None]) -> None:
    engine(name.partition("-")[0])
    assert acted(name, 100, n_tasks=4) >= 100


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", ENVS)
def test_ten_thousand_random_actions_do_not_break_an_env(
    name: str, engine: Callable[[str], None]
) -> None:
    engine(name.partition("-")[0])
    assert acted(name, 10_000, n_tasks=64) >= 10_000


def test_every_benchmark_has_a_fuzz_grammar() -> None:
    own = {spec.name for spec in benchmark_specs() if spec.env.startswith("coevo_gym.envs.")}
    assert own == set(GRAMMARS) == {name.partition("-")[0] for name in ENVS}


def acted(name: str, n_actions: int, n_tasks: int) -> int:
    """Send generated actions to one env; returns how many it took. Then its references solve."""
    benchmark = name.partition("-")[0]
    tasks = get_benchmark(benchmark).tasks(Split.TRAIN)
    tasks = tasks[:: max(1, len(tasks) // n_tasks)]
    env = make_env(benchmark, **ENVS[name])
    n_steps = 0

    @settings(
        max_examples=math.ceil(n_actions / STEPS),
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def play(data: st.DataObject) -> None:
        nonlocal n_steps
        task = data.draw(st.sampled_from(tasks), label="task")
        begin(env, task)
        for _ in range(STEPS):
            action = data.draw(GRAMMARS[benchmark](env.view), label="action")
            if step(env, action):
                begin(env, task)
            n_steps += 1

    play()
    for task in tasks[:3]:
        assert solves(env, task), f"{task.name}: the reference failed after all that"
    env.close()
    return n_steps


def begin(env: TaskEnv, task: Task) -> None:
    """Reset an env, and see that it shows what it may."""
    observation, info = env.reset(seed=0, options={"task": task})
    check(env, observation, info)


def step(env: TaskEnv, action: str) -> bool:
    """Take a step, and see that it shows what it may; whether the episode is over."""
    kinds = {key: type(value) for key, value in env.info.items()}
    observation, reward, terminated, truncated, info = env.step(action)
    check(env, observation, info)
    assert {key: type(value) for key, value in info.items()} == kinds
    assert type(reward) is float
    assert 0.0 <= reward <= 1.0
    assert type(terminated) is type(truncated) is bool
    assert bool(info["end_reason"]) is (terminated or truncated)
    assert info["action_valid"] or info["error_kind"]
    if terminated or truncated:
        record = trajectory_of(env)
        assert trajectory_from_json(json.loads(json.dumps(trajectory_to_json(record)))) == record
        assert 0.0 <= info["score"] <= 1.0
    return terminated or truncated


def check(env: TaskEnv, observation: str, info: dict[str, Any]) -> None:
    """What is shown is a member of its space, and JSON in UTF-8."""
    assert observation in env.observation_space
    assert json.loads(json.dumps(info, allow_nan=False, ensure_ascii=False).encode())
    assert env.view.observation == observation


def solves(env: TaskEnv, task: Task) -> bool:
    """Whether a task's reference scores 1."""
    env.reset(seed=0, options={"task": task})
    info: dict[str, Any] = {}
    solution: Sequence[str] = task.solution
    for action in solution:
        *_, info = env.step(action)
    return bool(info["score"] == 1.0 and info["success"])
