from __future__ import annotations

from collections.abc import Iterator

import gymnasium as gym
import pytest

from coevo_gym.episodes.env_pool import EnvPool


@pytest.fixture
def envs() -> Iterator[EnvPool]:
    pool = EnvPool(lambda: gym.make("Toy-v0", disable_env_checker=True))
    yield pool
    pool.close()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
