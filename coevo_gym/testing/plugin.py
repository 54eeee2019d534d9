"""The pytest plugin that provides the ``coevo_env`` fixture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from coevo_gym.envs.base import TaskEnv


@pytest.fixture
def coevo_env() -> Iterator[Callable[..., TaskEnv]]:
    """Create envs like :func:`coevo_gym.testing.make_env`, and close them all after the test.

    Example:
        def test_buying_nothing_scores_nothing(coevo_env):
            env = coevo_env("webshop")
            assert env.step("")[1] == 0.0
    """
    from coevo_gym.testing.fixtures import make_env

    envs: list[TaskEnv] = []

    def make(benchmark: str, task: Any = None, **kwargs: Any) -> TaskEnv:
        env = make_env(benchmark, task, **kwargs)
        envs.append(env)
        return env

    yield make
    for env in envs:
        env.close()
