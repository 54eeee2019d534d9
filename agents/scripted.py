"""Agents without a policy, which follow a script or a reference solution, or act at random."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from numpy.random import Generator

from coevo_gym.core.errors import ConfigError, TaskError
from coevo_gym.core.seams import Act
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import View
from coevo_gym.episodes.evaluation import Parts

Script = Callable[[View], str] | Mapping[str, Sequence[str]] | Sequence[str]


class ScriptedAgent:
    """An agent that follows a script. It is stateless, so episodes may run concurrently.

    A script is a list of actions for every episode, a list per instruction, or a function of the
    view. The length of the view's history is the position in a list.

    Args:
        script: script to follow.
        after: action to repeat after the last action of a list; None to raise an error instead.

    Example:
        >>> agent = ScriptedAgent(["press red", "done"])
        >>> agent.act([View("Press red.", "Pressed: nothing.")])[0].text
        'press red'
    """

    def __init__(self, script: Script, *, after: str | None = None) -> None:
        if isinstance(script, str):
            raise ConfigError(f"A script must be a list of actions, got the string {script!r}")
        self._script = script
        self._after = after

    def act(self, views: Sequence[View]) -> list[Act]:
        """Return the script's next action for each view."""
        return [Act(self._next_action(view)) for view in views]

    def _next_action(self, view: View) -> str:
        if callable(self._script):
            return self._script(view)
        if isinstance(self._script, Mapping):
            if view.instruction not in self._script:
                raise ConfigError(f"There is no script for the instruction {view.instruction!r}.")
            actions = self._script[view.instruction]
        else:
            actions = self._script
        step = len(view.history)
        if step < len(actions):
            return actions[step]
        if self._after is None:
            raise ConfigError(
                f"The script has only {len(actions)} actions, but the episode continues. "
                "Pass after=… to set the action for all remaining steps."
            )
        return self._after


def reference_players(
    sample: int, done: int, tasks: Sequence[Task]
) -> AbstractContextManager[Parts]:
    """Return agents that replay task solutions, to give an upper bound on success rates.

    Pass this function to :func:`~coevo_gym.episodes.evaluation.evaluate` in place of an agent.
    """
    return nullcontext((ScriptedAgent(task.solution, after=""), [task]) for task in tasks)


class RandomAgent:
    """An agent that draws uniformly from a benchmark's choices.

    Args:
        choices: function that returns the candidates of a view, such as ``benchmark.choices``.
        rng: the agent's only source of randomness.

    Example:
        >>> import numpy as np
        >>> agent = RandomAgent(lambda view: ("left", "right"), np.random.default_rng(0))
        >>> agent.act([View("Go.", "A fork.")])[0].text
        'right'
    """

    def __init__(self, choices: Callable[[View], Sequence[str]], rng: Generator) -> None:
        self._choices = choices
        self._rng = rng

    def act(self, views: Sequence[View]) -> list[Act]:
        """Return one random action per view, in order."""
        return [Act(self._draw(view)) for view in views]

    def _draw(self, view: View) -> str:
        options = self._choices(view)
        if not options:
            raise TaskError(f"The env offers no action after {view.observation[:200]!r}.")
        return options[int(self._rng.integers(len(options)))]
