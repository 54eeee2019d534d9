"""Runs on the shop whose rounds ask a server of this machine, which answers by rule."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from feedback_overlap import Endpoint, Messages, settings, shopper

__all__ = ["Endpoint", "Messages", "as_options", "shopper", "small"]


def small(url: str, **more: Any) -> dict[str, Any]:
    """Settings of a run of seconds."""
    return settings(
        url,
        **{
            "warmup.n_tasks": 4,
            "warmup.max_epochs": 1,
            "curriculum.initial_size": 3,
            "curriculum.evolve_every_groups": 8,
            "curriculum.max_contexts_per_round": 2,
            "curriculum.drafts_per_round": 6,
            "curriculum.theta": 40,
            "curriculum.n_min": 8,
            "rollout.group_size": 4,
            "loop.max_env_steps": None,
            "loop.max_steps": 4,
            "loop.groups_per_step": 4,
            "loop.evaluate_every_steps": 0,
            "evaluation.n_tasks": 5,
            "explorer.max_steps": 6,
            **more,
        },
    )


def as_options(sets: dict[str, Any]) -> list[str]:
    """The settings as the command line takes them."""

    def text(value: Any) -> str:
        if isinstance(value, list):
            return ",".join(value)
        return str(value).lower() if isinstance(value, bool) or value is None else str(value)

    return [f"--set={key}={text(value)}" for key, value in sets.items()]
