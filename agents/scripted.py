"""Agents that play given actions, for references, demonstrations and tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import Act
from coevo_gym.core.trajectory import View

Script = Callable[[View], str] | Mapping[str, Sequence[str]] | Sequence[str]


class ScriptedAgent:
    """An agent that plays a script; it is stateless, so episodes may run concurrently.

    A script is a list of actions for every episode, a list per instruction, or a function of the
    view. The position in a list is the length of the view's history.

    Args:
        script: script to play.
        after: action after the end of a list; None to raise an error.

    Example:
        >>> agent = ScriptedAgent(["press red", "done"])
        >>> agent.act([View("Press red.", "Pressed: nothing.")])[0].text
        'press red'
    """

    def __init__(self, script: Script, *, after: str | None = None) -> None:
        if isinstance(script, str):
            raise ConfigError(f"A script must be a list of actions, actual: string {script!r}")
        self._script = script
        self._after = after

    def act(self, views: Sequence[View]) -> list[Act]:
        """Return the script's next action for each view."""
        return [Act(self._next(view)) for view in views]

    def _next(self, view: View) -> str:
        if callable(self._script):
            return self._script(view)
        if isinstance(self._script, Mapping):
            if view.instruction not in self._script:
                raise ConfigError(f"No script for the instruction {view.instruction!r}.")
            actions = self._script[view.instruction]
        else:
            actions = self._script
        step = len(view.history)
        if step < len(actions):
            return actions[step]
        if self._after is None:
            raise ConfigError(
                f"The script has only {len(actions)} actions, but the episode continues. "
                "Pass after=… to set the action after its end."
            )
        return self._after
