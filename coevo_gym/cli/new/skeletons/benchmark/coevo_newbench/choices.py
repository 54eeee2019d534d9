"""What a scorer may choose from; it sees only what the policy sees."""

from __future__ import annotations

from coevo_gym.core.trajectory import View


def choices(view: View) -> tuple[str, ...]:
    """The actions that do something now."""
    return tuple(view.info["admissible"])
