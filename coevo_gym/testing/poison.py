"""Poisoned tasks, which detect engines that read a task's ground truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from coevo_gym.core.task import FrozenModel, Task
from coevo_gym.envs.base import TaskEnv

GROUND_TRUTH = frozenset({"verifier", "solution"})
"""The fields of a task that no engine may read."""


class Poison:
    """A guard that raises an error if an engine of ``env`` reads a task's ground truth.

    Args:
        env: a bare env; calls of its ``_begin`` and ``_act`` are watched from now on.

    Attributes:
        n_watched: number of watched calls.

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
        """Return a copy of a task, with its id, that engines must not read."""
        copy = task.model_copy()
        _ = copy.id  # computed now, because it also hashes the verifier
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
        raise AssertionError(f"{self._at_work} reads {kind}.{name}, which only the judge may read")

    def _watched(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.n_watched += 1
            self._at_work = name
            try:
                return hook(*arguments)
            finally:
                self._at_work = ""

        return call
