"""Aiming: where an explorer starts its search for a target, and how it proceeds without a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.evolution import Context
from coevo_gym.core.spaces import spaced
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import View
from coevo_gym.curricula.signals.kinds import UNGUIDED
from coevo_gym.envs.tags import value_of_tag

PREFERENCE = 4.0
"""Factor by which each target word in a choice raises the probability of that choice."""
MOST_WORDS = 2
"""Maximum number of target words counted per choice; a long choice contains many by chance."""
_WORD = re.compile(r"[^\W\d_]{3,}")


def is_open(context: Context) -> bool:
    """Return True if the explorer sees the context's task without its request."""
    return bool(context.target) or context.kind == UNGUIDED


def opened_for(benchmark: Benchmark, context: Context) -> Task:
    """Return the task where walks towards a target start: opened if the benchmark supports it."""
    if context.target and hasattr(benchmark, "open"):
        task: Task = benchmark.open(context.task)
        return task
    return context.task


class Aim:
    """A bias towards choices that mention the target.

    It sees the choices of a policy whose instruction names the target, and no more than a policy
    sees.

    Args:
        choices: returns the available actions in a view; ``benchmark.choices``.
        target: tags.

    Example:
        >>> aim = Aim(lambda view: ("go to desk 1", "take mug 1"), ("object:mug",))
        >>> aim.weights(("go to desk 1", "take mug 1")).tolist()
        [1.0, 4.0]
    """

    def __init__(self, choices: Callable[[View], Sequence[str]], target: Sequence[str]) -> None:
        self._choices = choices
        values = [value_of_tag(tag) for tag in target]
        self.request = ", ".join(values)
        self.words = frozenset(word for value in values for word in _words(value))

    def choices(self, view: View) -> Sequence[str]:
        """Return the available actions in a view."""
        return self._choices(replace(view, instruction=self.request))

    def weights(self, choices: Sequence[str]) -> np.ndarray:
        """Return the relative probability of each choice."""
        said = [len(self.words & _words(choice)) for choice in choices]
        return PREFERENCE ** np.minimum(said, MOST_WORDS)

    def draw(self, choices: Sequence[str], rng: Generator) -> str:
        """Draw one of the choices."""
        weights = self.weights(choices)
        return choices[int(rng.choice(len(choices), p=weights / weights.sum()))]


def _words(text: str) -> frozenset[str]:
    """Return the lower-case words of a text, with camel-case names split."""
    return frozenset(_WORD.findall(f"{text} {spaced(text)}".lower()))
