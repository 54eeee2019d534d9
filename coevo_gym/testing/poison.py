"""Poisoned tasks: a proof that no engine reads what only the judge may know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from coevo_gym.core.task import FrozenModel, Task
from coevo_gym.envs.base import TaskEnv

GROUND_TRUTH = frozenset({"verifier", "solution"})
"""The fields of a task that no engine may read."""


class Poison:
    """Makes reading a task's ground truth an error while an engine of ``env`` is at work.

    Args:
        env: a bare env; its ``_begin`` and ``_act`` are watched from now on.

    Attributes:
        n_watched: how often one of them has been called.

    Example:
        >>> from coevo_gym.testing import make_env
        >>> env = make_env("webshop")
        >>> _ = env.reset(options={"task": Poison(env).task(env.tasks[0])})
    """

    def __init__(self, env: TaskEnv) -> None:
        self.n_watched = 0
        self._at_work = ""
        for hook in ("_begin", "_act"):
            setattr(env, hook, self._watched(hook, getattr(env, hook)))

    def task(self, task: Task) -> Task:
        """A copy of a task, with its id, that must not be read while an engine is at work."""
        copy = task.model_copy()
        _ = copy.id  # a hash of the verifier, too
        verifier = copy.verifier.model_copy()
        self._poison(verifier, frozenset(type(verifier).model_fields) | {"model_dump"})
        object.__setattr__(copy, "verifier", verifier)
        self._poison(copy, GROUND_TRUTH | {"model_dump", "to_json"})
        return copy

    def _poison(self, model: FrozenModel, fields: frozenset[str]) -> None:
        def read(this: FrozenModel, name: str) -> Any:
            if name in fields and self._at_work:
                self._refuse(type(this).__bases__[0].__name__, name)
            return super(type(this), this).__getattribute__(name)

        kind = type(model)
        watched = type(kind.__name__, (kind,), {"__getattribute__": read})
        object.__setattr__(model, "__class__", watched)

    def _refuse(self, kind: str, name: str) -> NoReturn:
        raise AssertionError(f"{self._at_work} reads {kind}.{name}, which is for the judge alone")

    def _watched(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.n_watched += 1
            self._at_work = name
            try:
                return hook(*arguments)
            finally:
                self._at_work = ""

        return call
