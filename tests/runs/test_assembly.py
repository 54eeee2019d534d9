"""The parts of a run, made from its config."""

from __future__ import annotations

from typing import Any

import pytest

from coevo_gym.runs.assembly import Assembly
from coevo_gym.runs.config import RunConfig


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"benchmark": {"name": "toy"}}, 128),
        ({"benchmark": {"name": "appworld"}}, 8),  # two processes each
        ({"benchmark": {"name": "appworld"}, "rollout": {"max_envs": 3}}, 3),
    ],
)
def test_no_more_envs_than_the_engine_bears(settings: dict[str, Any], limit: int) -> None:
    assembly = Assembly(RunConfig.model_validate(settings))
    assert assembly.envs().max_envs == limit
