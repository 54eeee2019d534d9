"""The parts of a run, made from its config."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import coevo_gym
from coevo_gym.runs.assembly import Assembly
from coevo_gym.runs.config import RunConfig


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"benchmark": {"name": "toy"}}, 128),
        ({"benchmark": {"name": "appworld"}}, 8),  # two processes each
        ({"benchmark": {"name": "appworld"}, "rollout": {"max_envs": 3}}, 3),
    ],
    ids=["default", "engine-limit", "max_envs"],
)
def test_the_env_pool_is_limited_by_the_engine_and_the_settings(
    settings: dict[str, Any], limit: int
) -> None:
    assembly = Assembly(RunConfig.model_validate(settings))
    assert assembly.make_env_pool().max_envs == limit


@pytest.mark.parametrize("most", [1, 3])
def test_no_scenario_has_more_held_out_tasks_than_the_limit(most: int) -> None:
    """The first tasks by id are selected; other scenarios take the remaining places."""
    every = sorted(coevo_gym.tasks("webshop", "val", "builtin"), key=lambda task: task.id)
    of_all = Counter(task.scenario for task in every)
    assert max(of_all.values()) > most
    limits = {"n_tasks": len(every), "per_scenario": most}
    settings = {"benchmark": {"name": "webshop", "subset": "builtin"}, "evaluation": limits}
    held_out = Assembly(RunConfig.model_validate(settings)).held_out_tasks
    assert [task for task in every if task in held_out] == list(held_out)
    counts = Counter(task.scenario for task in held_out)
    assert counts == {scenario: min(n, most) for scenario, n in of_all.items()}
    limits["n_tasks"] = 2
    assert list(Assembly(RunConfig.model_validate(settings)).held_out_tasks) == list(held_out)[:2]
