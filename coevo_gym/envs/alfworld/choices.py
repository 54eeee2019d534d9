"""Commands that would currently have an effect, as candidates for action-scoring policies."""

from __future__ import annotations

from coevo_gym.core.trajectory import View


def choices(view: View) -> tuple[str, ...]:
    """Return all admissible commands except ``help``."""
    return tuple(command for command in view.info["admissible"] if command != "help")
