"""The system text of language models before the first observation, rebuilt from settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateError

from coevo_gym.core.errors import CoevoError
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.trajectory import EvalTrajectory, Trajectory, View
from coevo_gym.runs.config import PolicySettings
from coevo_gym.runs.policies import prompt_of


def system_text(
    policy: PolicySettings,
    benchmark: str,
    about: Mapping[str, Any],
    episode: Trajectory | EvalTrajectory,
    instruction: str,
) -> str | None:
    """Return the system text; None if it cannot be determined with certainty.

    Args:
        policy: settings of the policy.
        benchmark: name of the benchmark.
        about: manifest of the run or config of the evaluation, which contain the prompt file's
            hash.
        episode: the episode.
        instruction: the task's instruction.
    """
    try:
        prompt = prompt_of(policy, benchmark)
        known = about.get("prompt") or {}
        if prompt is None or known.get("hash") != prompt.hash or not episode.steps:
            return None
        first = episode.steps[0]
        view = View(instruction, first.shown, FrozenDict(first.extras))
        return prompt.system(view, thinking=policy.chat.thinking) or None
    except (CoevoError, TemplateError, OSError, ValueError, KeyError, AttributeError):
        return None  # the prompt file is missing or needs data that was not stored
