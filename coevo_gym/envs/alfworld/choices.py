"""The commands that a scoring policy may choose from: those that have an effect now."""

from __future__ import annotations

from coevo_gym.core.trajectory import View


def choices(view: View) -> tuple[str, ...]:
    """Return the admissible commands, sorted; ``help`` is left out because it reveals nothing."""
    return tuple(command for command in view.info["admissible"] if command != "help")
