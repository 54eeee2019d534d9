"""The helpers that other people's tests use."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import coevo_gym
from coevo_gym.envs.base import TaskEnv
from coevo_gym.testing import make_env, replay

pytest_plugins = ["pytester"]


def test_replay_plays_the_reference_by_default() -> None:
    task = coevo_gym.tasks("toy", "test")[0]
    assert replay(task).success
    assert replay(task, ("press red", "done")).score < 1.0


def test_the_coevo_env_fixture_makes_envs(coevo_env: Callable[..., TaskEnv]) -> None:
    env = coevo_env("webshop", coevo_gym.tasks("webshop", "val")[0].name, max_steps=2)
    assert env.step("")[3] is False
    assert env.step("")[3] is True


def test_a_seed_picks_the_task(coevo_env: Callable[..., TaskEnv]) -> None:
    names = [coevo_env("toy", seed=seed).task.name for seed in (0, 0, 1, 2, 3)]
    assert names[0] == names[1] == coevo_env("toy").task.name
    assert len(set(names)) > 1


def test_other_projects_can_use_the_pytest_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_buying_nothing_scores_nothing(coevo_env):
            assert coevo_env("webshop").step("")[1] == 0.0
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_the_error_for_an_unknown_benchmark_lists_the_registered_ones() -> None:
    with pytest.raises(coevo_gym.CoevoError, match=r"Unknown benchmark 'atari'\. Registered"):
        make_env("atari")
