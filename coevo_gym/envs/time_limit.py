"""The limit that Gymnasium puts around an env, made known to the env inside.

``gym.make(id, max_episode_steps=n)`` makes the env first and then wraps it: ``TimeLimit(env, n)``
cuts an episode from outside, where nobody can grade it. An env is not told of that: its arguments
and its spec know no limit, and wrappers know what is inside of them, never what is outside. So
``TimeLimit`` is taught here to tell the env that it is put around, if that env has a method
``limit_steps`` to be told by. For all other envs it stays as it is.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

ONE_TO_ONE = (OrderEnforcing, PassiveEnvChecker, TimeLimit)
"""Wrappers of ``gym.make`` through which a step stays one step."""


@runtime_checkable
class StepLimited(Protocol):
    """An env that ends its episodes itself, and can be told after how many steps."""

    def limit_steps(self, limit: int) -> None:
        """End every episode after ``limit`` steps at most."""
        ...


def let_time_limits_tell() -> None:
    """Let every ``TimeLimit`` made from now on tell its limit to a :class:`StepLimited` env."""
    make = TimeLimit.__init__
    if make.__module__ == __name__:
        return

    @wraps(make, assigned=())
    def make_and_tell(self: Any, env: gym.Env[Any, Any], max_episode_steps: int) -> None:
        make(self, env, max_episode_steps)
        while type(env) in ONE_TO_ONE:
            env = env.env  # type: ignore[attr-defined]
        if isinstance(env, StepLimited):
            env.limit_steps(max_episode_steps)

    TimeLimit.__init__ = make_and_tell  # type: ignore[method-assign]
