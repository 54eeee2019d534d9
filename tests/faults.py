"""Engines that fail, in the envs of the toy benchmark, and models that give no answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import pytest

from coevo_gym.core.errors import EnvBackendError
from coevo_gym.core.seams import Act, Agent
from coevo_gym.core.trajectory import EndReason, View
from tests.toy import ToyEnv


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
