"""Step limits set by Gymnasium's ``TimeLimit``, passed on to the env inside it.

``gym.make(id, max_episode_steps=n)`` makes the env first and wraps it afterwards. A plain
``TimeLimit(env, n)`` would cut an episode from outside, and the env could not grade it: neither the
env's arguments nor its spec contain the limit, and a wrapper knows the env inside it but not the
wrappers around it. This module therefore patches ``TimeLimit`` to call ``limit_steps`` on the env,
if the env has that method. All other envs are unaffected.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

ONE_TO_ONE = (OrderEnforcing, PassiveEnvChecker, TimeLimit)
"""Wrappers added by ``gym.make`` that pass on each step as exactly one step."""


@runtime_checkable
class StepLimited(Protocol):
    """An env that ends its own episodes and accepts a step limit."""

    def limit_steps(self, limit: int) -> None:
        """End every episode after at most ``limit`` steps."""
        ...


def let_time_limits_tell() -> None:
    """Patch ``TimeLimit`` to pass its limit to any :class:`StepLimited` env; safe to call twice."""
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
