"""Benchmarks of rows keep the contract of all benchmarks, in this process and in others."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable

import gymnasium as gym
import pytest

from coevo_gym import EvolvingVectorSampler, from_rows
from coevo_gym.core.errors import ConfigError
from coevo_gym.envs.rows import RowsBenchmark
from coevo_gym.envs.workers.starting import can_run_workers
from coevo_gym.testing.benchmark import BENCHMARK_CHECKS
from coevo_gym.testing.contract import CHECKS
from tests import ten_rows

MADE = (ten_rows.ten, ten_rows.guesses)


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_env_keeps_the_contract(
    check: Callable[[str], None], make: Callable[[], RowsBenchmark]
) -> None:
    check(make().env_id)


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
@pytest.mark.parametrize("check", BENCHMARK_CHECKS, ids=lambda check: check.__name__)
def test_the_benchmark_keeps_the_contract(
    check: Callable[[str], None], make: Callable[[], RowsBenchmark]
) -> None:
    check(make().name)


# Other processes.

workers = pytest.mark.skipif(not can_run_workers(), reason="worker processes need Linux")


@workers
def test_worker_processes_give_the_same_rewards_as_this_process() -> None:
    ten = ten_rows.ten()
    results = []
    for mode in ("in_process", "process"):
        envs = gym.make_vec(ten.env_id, num_envs=3, mode=mode)
        tasks = ten.tasks("train")[:3]
        envs.reset(options={"tasks": tasks})
        answers = [tasks[0].solution[0], "wrong", ""]
        results.append([part.tolist() for part in envs.step(answers)[1:3]])
        envs.close()
    assert results[0] == results[1] == [[1.0, 0.0, 0.0], [True, True, True]]


@workers
def test_a_sampler_practises_rows_in_worker_processes() -> None:
    guesses = ten_rows.guesses()
    envs = EvolvingVectorSampler(gym.make_vec(guesses.env_id, num_envs=2, n_workers=2), "sec")
    envs.reset()
    for _ in range(40):
        *_, terminated, truncated, _ = envs.step(["stop", "4"])
        envs.reset(options={"reset_mask": terminated | truncated})
    assert envs.session.metrics()["groups"] >= 1
    envs.close()


@workers
def test_a_verify_function_that_cannot_be_sent_to_workers_is_refused() -> None:
    local = from_rows([{"prompt": "p"}], lambda row, answer: True, name="local")
    with pytest.raises(
        ConfigError, match=r"verify \(.*<lambda>\) cannot be sent to other processes"
    ):
        gym.make_vec(local.env_id, num_envs=2, mode="process")


@workers
def test_tools_run_in_worker_processes() -> None:
    rows = [ten_rows.row(n) for n in range(9)]
    shop = from_rows(rows, ten_rows.check, tools=[ten_rows.price], name="shop")
    envs = gym.make_vec(shop.env_id, num_envs=2, mode="process")
    tasks = shop.tasks("train")[:2]
    envs.reset(options={"tasks": tasks})
    call = '<tool_call>{"name": "price", "arguments": {"fruit": "fig"}}</tool_call>'
    observations, _, terminated, *_ = envs.step([call, "wrong"])
    assert f"\n{3 * int(tasks[0].solution[0])}\n" in observations[0]
    assert terminated.tolist() == [False, True]
    envs.close()


def test_a_pickled_benchmark_is_registered_where_it_is_unpickled() -> None:
    ten = ten_rows.ten()
    assert pickle.loads(pickle.dumps(ten)) is ten
    code = (
        "import pickle, sys; ten = pickle.load(sys.stdin.buffer); env = ten.make(); "
        "env.reset(options={'task_id': 'ten/7'}); print(env.step('10')[1], ten)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(ten), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == f"1.0 {ten!r}"
