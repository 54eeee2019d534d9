"""Candidate actions for policies that score actions, computed from what the policy sees."""

from __future__ import annotations

from coevo_gym.core.trajectory import View


def choices(view: View) -> tuple[str, ...]:
    """Return the actions that would have an effect now."""
    return tuple(view.info["admissible"])
