"""Engines in worker processes give what stepping one env after the other gives, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coevo_gym
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import EnvBackendError
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory_json import trajectory_to_json
from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.vector import TaskVectorEnv
from coevo_gym.episodes.episode import trajectory_of
from tests.workers import faulty

faulty.register()
TRAIN = coevo_gym.tasks("toy", "train")
N = 3
ACTIONS = ["press red", "press blue", "press white", "done", "what?", "\ud800", "engine"]


def state_of(env: TaskEnv) -> list[Any]:
    """All that can be seen of an env."""
    over = env.info["end_reason"]
    graded = over and over != "worker_lost"
    record = trajectory_to_json(trajectory_of(env, group_id="g")) if graded else None
    return [
        env.view,
        env.info,
        env.calls,
        env.instruction,
        record,
        env.np_random.bit_generator.state,
    ]


def same(first: Any, second: Any) -> None:
    """Equal, and of the same types, as text too."""
    assert first == second
    assert repr(first) == repr(second)


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[TaskVectorEnv, TaskVectorEnv]]:
    here = TaskVectorEnv(faulty.ENV_ID, N, mode="in_process", autoreset_mode="NextStep")
    there = TaskVectorEnv(faulty.ENV_ID, N, n_workers=2, autoreset_mode="NextStep")
    yield here, there
    here.close()
    there.close()


@settings(max_examples=30)
@given(
    st.integers(0, 99),
    st.lists(st.lists(st.sampled_from(ACTIONS), min_size=N, max_size=N), max_size=12),
    st.lists(st.one_of(st.none(), st.integers(0, len(TRAIN) - 1)), min_size=N, max_size=N),
)
def test_any_sequence_of_actions_gives_the_same_results_in_worker_processes(
    both: tuple[TaskVectorEnv, TaskVectorEnv],
    seed: int,
    actions: Sequence[Sequence[str]],
    tasks: Sequence[int | None],
) -> None:
    chosen = [None if index is None else TRAIN[index] for index in tasks]
    alone = [Alone(seed + index, task) for index, task in enumerate(chosen)]
    first, second = (envs.reset(seed=seed, options={"tasks": chosen}) for envs in both)
    same(str(first), str(second))
    for act in actions:
        stepped = [envs.step(act) for envs in both]
        same(str(stepped[0]), str(stepped[1]))
        for index in range(N):
            states = [state_of(envs.unwrapped_env(index)) for envs in both]
            same(*states)
            same(alone[index].step(act[index]), states[0])


class Alone:
    """One env that is stepped by itself, and reset by the step after an end."""

    def __init__(self, seed: int, task: Task | None) -> None:
        self.env = gym.make(faulty.ENV_ID, disable_env_checker=True)
        self.env.reset(seed=seed, options={"task": task} if task else None)
        self.over = False

    def step(self, action: str) -> list[Any]:
        bare = self.env.unwrapped
        assert isinstance(bare, TaskEnv)
        if self.over:
            self.env.reset()
            self.over = False
        else:
            try:
                _, _, terminated, truncated, _ = self.env.step(action)
                self.over = terminated or truncated
            except EnvBackendError:
                self.over = True
        return state_of(bare)


def play(env_id: str, tasks: Sequence[Task], n_steps: int, **kwargs: Any) -> Iterator[Any]:
    """All that random agents see in episodes that take turns."""
    choices = get_benchmark(tasks[0].benchmark).choices
    envs = TaskVectorEnv(env_id, len(tasks), **kwargs)
    rngs = [np.random.default_rng(index) for index in range(len(tasks))]
    yield str(envs.reset(seed=5, options={"tasks": list(tasks)}))
    for _ in range(n_steps):
        actions = []
        for view, rng in zip(envs.views, rngs, strict=True):
            offered = choices(view) or ("?",)
            actions.append(offered[int(rng.integers(len(offered)))])
        yield str(envs.step(actions))
        yield [state_of(envs.unwrapped_env(index))[:-1] for index in range(len(tasks))]
        if envs.over.any():
            yield str(envs.reset(options={"reset_mask": envs.over}))
    envs.close()


@pytest.mark.parametrize(
    ("benchmark", "env_id", "n_steps"),
    [
        ("webshop", "CoEvolve-WebShop-v0", 20),
        ("bfcl", "CoEvolve-BFCL-v0", 12),
        ("alfworld", "CoEvolve-ALFWorld-v0", 20),
        pytest.param("appworld", "CoEvolve-AppWorld-v0", 2, marks=pytest.mark.slow),
    ],
)
def test_benchmarks_give_the_same_results_in_worker_processes(
    engine: Callable[[str], None], benchmark: str, env_id: str, n_steps: int
) -> None:
    engine(benchmark)
    tasks = coevo_gym.tasks(benchmark)[: 2 if benchmark == "appworld" else 3]
    limit = {"max_steps": max(1, n_steps // 2)}  # so that episodes end, and others begin
    here = play(env_id, tasks, n_steps, mode="in_process", **limit)
    there = play(env_id, tasks, n_steps, mode="process", n_workers=2, **limit)
    for first, second in zip(here, there, strict=True):
        same(first, second)


def test_render_returns_the_same_pages_in_worker_processes() -> None:
    pages = []
    for mode in ("in_process", "process"):
        envs = TaskVectorEnv("CoEvolve-WebShop-v0", 2, mode=mode, render_mode="html")
        envs.reset(seed=3)
        envs.step(["search[lamp]"] * 2)
        pages.append(envs.render())
        envs.close()
    assert "<html" in pages[0][0]
    assert pages[0] == pages[1]


def test_a_worker_keeps_an_env_between_its_episodes(
    both: tuple[TaskVectorEnv, TaskVectorEnv],
) -> None:
    _, envs = both
    blueprints = []
    for seed in range(3):
        envs.reset(seed=seed)
        blueprints.append([env.get_wrapper_attr("_blueprint") for env in envs.envs])
    assert blueprints[1:] == blueprints[:1] * 2, "another blueprint makes the worker build the env"
    assert all(blueprints[0])
