"""Aiming: where an explorer begins to look for a target, and how it goes on without a model."""

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
"""So much likelier a choice is made for each word of the target that it says."""
MOST_WORDS = 2
"""Words of a target that count in one choice; a long choice says many by chance."""
_WORD = re.compile(r"[^\W\d_]{3,}")


def is_open(context: Context) -> bool:
    """Whether an explorer is shown the context's task with nothing asked for."""
    return bool(context.target) or context.kind == UNGUIDED


def opened_for(benchmark: Benchmark, context: Context) -> Task:
    """Where walks towards a target begin: its task, opened where the benchmark can do that."""
    if context.target and hasattr(benchmark, "open"):
        task: Task = benchmark.open(context.task)
        return task
    return context.task


class Aim:
    """Makes choices that speak of a target likelier.

    It sees the choices of somebody who asks for what the target says, and no more than a policy.

    Args:
        choices: what may be done in a view, ``benchmark.choices``.
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
        """What may be done in a view."""
        return self._choices(replace(view, instruction=self.request))

    def weights(self, choices: Sequence[str]) -> np.ndarray:
        """How likely each choice is, relative to the others."""
        said = [len(self.words & _words(choice)) for choice in choices]
        return PREFERENCE ** np.minimum(said, MOST_WORDS)

    def draw(self, choices: Sequence[str], rng: Generator) -> str:
        """One of the choices."""
        weights = self.weights(choices)
        return choices[int(rng.choice(len(choices), p=weights / weights.sum()))]


def _words(text: str) -> frozenset[str]:
    """The words of a text in small letters, those of names with humps too."""
    return frozenset(_WORD.findall(f"{text} {spaced(text)}".lower()))
