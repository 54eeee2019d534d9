"""What a scorer may choose from: the commands that do something now."""

from __future__ import annotations

from coevo_gym.core.trajectory import View


def choices(view: View) -> tuple[str, ...]:
    """The admissible commands, sorted; without ``help``, which tells nothing about the task."""
    return tuple(command for command in view.info["admissible"] if command != "help")
