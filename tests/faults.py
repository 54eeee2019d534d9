"""Engines that fail, in the envs of the toy benchmark, and models that give no answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import gymnasium as gym
import pytest

from coevo_gym.core.errors import EnvBackendError
from coevo_gym.core.seams import Act, Agent
from coevo_gym.core.trajectory import EndReason, View
from tests.toy import ToyEnv

T = TypeVar("T")


def break_engines(
    patch: pytest.MonkeyPatch, hook: str, is_broken: Callable[[ToyEnv], bool]
) -> None:
    """Let a hook fail in the envs that are broken when it is called."""
    sound = getattr(ToyEnv, hook)

    def call(self: ToyEnv, *args: Any) -> Any:
        if is_broken(self):
            raise EnvBackendError("the engine is gone")
        return sound(self, *args)

    patch.setattr(ToyEnv, hook, call)


class BreaksOn(gym.Wrapper[str, str, str, str]):
    """An engine that dies on one action."""

    def __init__(self, env: gym.Env[str, str], action: str) -> None:
        super().__init__(env)
        self.action, self.closed = action, False

    def step(self, action: str) -> Any:
        if action == self.action:
            raise EnvBackendError("the engine is gone")
        return super().step(action)

    def close(self) -> None:
        self.closed = True


class NoAnswer:
    """An agent whose model gives no answer about one task, from its second step on."""

    def __init__(self, agent: Agent, about: str) -> None:
        self.agent, self.about = agent, about

    def act(self, views: Sequence[View]) -> list[Act]:
        acts = self.agent.act(views)
        lost = Act("", said="the model is busy", end=EndReason.MODEL_LOST)
        return [
            lost if view.history and self.about in view.instruction else act
            for view, act in zip(views, acts, strict=True)
        ]


class Killed(BaseException):
    """The process ends here."""


class Seams:
    """Calls of what a test does not control, of which one may be made to fail.

    Attributes:
        n_calls: calls so far.
        failed: place of the call that failed since :meth:`fail_after`; "" for none.
    """

    def __init__(self) -> None:
        self.n_calls, self.failed = 0, ""
        self._left: int | None = None
        self._late = False
        self._errors: Mapping[str, Sequence[Callable[[], BaseException]]] = {}
        self._rng = random.Random(0)

    def fail_after(
        self, n: int | None, rng: random.Random, **errors: Sequence[Callable[[], BaseException]]
    ) -> None:
        """Let a call at one of the places fail, with one of its errors; none if ``n`` is None.

        It is the first one there after so many calls of all places. Half of the calls do their
        work before they fail.
        """
        place = rng.choice([*errors] or [""])
        self._left, self._rng, self.failed = n, rng, ""
        self._errors = {place: errors.get(place, ())}
        self._late = rng.random() < 0.5

    def call(self, place: str, work: Callable[[], T]) -> T:
        """Do the work of a place, unless it fails."""
        self.n_calls += 1
        due = False
        if self._left is not None:
            self._left -= 1
            if due := self._left < 0 and bool(self._errors.get(place)):
                self._left = None
        if not due:
            return work()
        self.failed = place
        error = self._rng.choice(self._errors[place])()
        if self._late:
            work()
        raise error

    def watch(self, patch: pytest.MonkeyPatch, owner: Any, name: str, place: str) -> None:
        """Send the calls of a function through :meth:`call`."""
        sound = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            return self.call(place, lambda: sound(*args, **kwargs))

        patch.setattr(owner, name, watched)
