"""A whole run of the preset with a model, on the shop, whose model is rules or their tape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import coevo_gym
from coevo_gym.runs.evolving.evolver_models import Models
from tests.tapes.webshop import Shopper

SHORT: dict[str, Any] = {
    "warmup.n_tasks": 4,
    "warmup.max_epochs": 1,
    "curriculum.growth.every_groups": 8,
    "curriculum.detector.theta": 40,
    "curriculum.detector.n_min": 8,
    "rollout.group_size": 4,
    "loop.max_env_steps": None,
    "loop.max_steps": 4,
    "loop.groups_per_step": 4,
    "loop.evaluate_every_steps": 0,
    "evaluation.n_tasks": 5,
}
"""Settings of a run of seconds that explores twice after its initial tasks."""

SETTINGS: dict[str, Any] = SHORT | {
    "arms": ["coevolve"],
    "curriculum.initial_size": 10,
    "curriculum.growth.max_contexts": 6,
    "curriculum.growth.drafts": 12,
}


def train_on_tape(folder: Path, tape: Path, *, record: bool = False) -> Path:
    """Train in a folder, with answers from a tape; or with rules, which make the tape."""
    sets = SETTINGS | {"tape.file": str(tape), "tape.mode": "record" if record else "replay"}
    with pytest.MonkeyPatch.context() as patch:
        if record:
            patch.setattr(
                Models, "_policy_to_query", lambda self, explorer, **_: Shopper().policy()
            )
        coevo_gym.train("webshop_llm", sets=sets, folder=folder, yes=True)
    return folder
