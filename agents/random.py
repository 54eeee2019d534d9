"""A random agent, the lower bound for every other agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numpy.random import Generator

from coevo_gym.core.errors import TaskError
from coevo_gym.core.seams import Act
from coevo_gym.core.trajectory import View


class RandomAgent:
    """An agent that draws uniformly from a benchmark's choices.

    Args:
        choices: function that returns the candidates of a view, such as ``benchmark.choices``.
        rng: only source of randomness.

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
            raise TaskError(f"No actions to choose from after {view.observation[:200]!r}.")
        return options[int(self._rng.integers(len(options)))]
