"""Envs that are lent to episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import gymnasium as gym

from coevo_gym.core.errors import ConfigError
from coevo_gym.envs.checks import is_positive_int


class EnvPool:
    """Envs of one kind that are reset, not rebuilt, from episode to episode.

    Args:
        make_env: makes one env; a :class:`TaskEnv`, wrapped or bare.
        max_envs: most episodes alive at once.

    Example:
        >>> pool = EnvPool(lambda: gym.make("CoEvolve-WebShop-v0"), max_envs=16)
        >>> pool.close()
    """

    def __init__(self, make_env: Callable[[], gym.Env[str, str]], *, max_envs: int = 128) -> None:
        if not is_positive_int(max_envs):
            raise ConfigError(f"max_envs must be a positive int, actual: {max_envs!r}")
        self.max_envs = max_envs
        self._make_env = make_env
        self._idle: list[gym.Env[str, str]] = []
        self._lent: dict[int, tuple[object, gym.Env[str, str]]] = {}  # to which scope

    @contextmanager
    def open(self) -> Iterator[Callable[[], gym.Env[str, str]]]:
        """A scope that lends envs; those not put back by its end are closed."""
        scope = object()

        def take() -> gym.Env[str, str]:
            env = self._idle.pop() if self._idle else self._make_env()
            self._lent[id(env)] = scope, env
            return env

        try:
            yield take
        finally:
            for key, (borrower, env) in list(self._lent.items()):
                if borrower is scope:
                    del self._lent[key]
                    env.close()

    def put(self, env: gym.Env[str, str]) -> None:
        """Take an env back for later episodes."""
        self._lent.pop(id(env), None)
        self._idle.append(env)

    def drop(self, env: gym.Env[str, str]) -> None:
        """Close an env that was lent: its engine is gone, and nobody will put it back."""
        self._lent.pop(id(env), None)
        env.close()

    def close(self) -> None:
        """Close every idle env; twice is fine."""
        while self._idle:
            self._idle.pop().close()
