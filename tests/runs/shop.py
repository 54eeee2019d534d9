"""Runs on the shop whose rounds ask a server of this machine, which answers by rule."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.tapes.training import SHORT

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from feedback_overlap import Endpoint, Messages, answer_as_shopper, run_settings
from resume import Counting, query_settings

__all__ = [
    "Counting",
    "Endpoint",
    "Messages",
    "answer_as_shopper",
    "as_options",
    "query_settings",
    "small_settings",
]


def small_settings(url: str, **more: Any) -> dict[str, Any]:
    """Settings of a run of seconds."""
    return run_settings(
        url,
        **SHORT,
        **{
            "curriculum.initial_size": 3,
            "curriculum.growth.max_contexts": 2,
            "curriculum.growth.drafts": 6,
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
