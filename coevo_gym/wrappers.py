"""Text envs for learners that know arrays only (Stable-Baselines3, CleanRL, Sample Factory)."""

from __future__ import annotations

import re
import zlib
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from coevo_gym.benchmark import get_benchmark
from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.checks import is_positive_int

_WORD = re.compile(r"\w+")


class ChooseAction(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Act by index into the benchmark's ``choices(view)``.

    ``info["action_mask"]`` is a (max_choices,) int8 array, 1 where an index means something now;
    an index beyond the list sends an empty action, which the env answers as a bad one.

    Args:
        env: a coevo_gym env.
        max_choices: size of the Discrete action space; later choices are not offered.

    Example:
        >>> import coevo_gym, gymnasium as gym
        >>> env = ChooseAction(gym.make("CoEvolve-WebShop-v0"), max_choices=8)
        >>> observation, info = env.reset(seed=0)
        >>> info["action_mask"].shape
        (8,)
    """

    def __init__(self, env: gym.Env[Any, Any], max_choices: int = 64) -> None:
        RecordConstructorArgs.__init__(self, max_choices=max_choices)
        gym.Wrapper.__init__(self, env)
        if not is_positive_int(max_choices):
            raise ValueError(
                f"Expects max_choices to be a positive int, actual: {max_choices!r} "
                f"({type(max_choices).__name__})"
            )
        self.action_space = Discrete(max_choices)
        self._benchmark = get_benchmark(cast(TaskEnv, env.unwrapped).benchmark)
        self.choices: tuple[str, ...] = ()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the env and offer its first choices."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, self._offer(info)

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Carry out the choice with this index."""
        text = self.choices[action] if 0 <= action < len(self.choices) else ""
        observation, reward, terminated, truncated, info = self.env.step(text)
        return observation, reward, terminated, truncated, self._offer(info)

    def _offer(self, info: dict[str, Any]) -> dict[str, Any]:
        size = int(cast(Discrete, self.action_space).n)
        self.choices = self._benchmark.choices(cast(TaskEnv, self.unwrapped).view)[:size]
        mask = np.zeros(size, dtype=np.int8)
        mask[: len(self.choices)] = 1
        return {**info, "action_mask": mask}


class HashText(gym.ObservationWrapper[NDArray[np.float32], Any, str], RecordConstructorArgs):
    """Observe a (dim,) vector of hashed word counts, of length 1, instead of text.

    Args:
        env: an env with text observations.
        dim: size of the vector; words share a place when their CRC-32 agrees modulo ``dim``.

    Example:
        >>> import coevo_gym, gymnasium as gym
        >>> env = HashText(gym.make("CoEvolve-WebShop-v0"), dim=32)
        >>> env.reset(seed=0)[0].shape
        (32,)
    """

    def __init__(self, env: gym.Env[str, Any], dim: int = 512) -> None:
        RecordConstructorArgs.__init__(self, dim=dim)
        gym.ObservationWrapper.__init__(self, env)
        if not is_positive_int(dim):
            raise ValueError(
                f"Expects dim to be a positive int, actual: {dim!r} ({type(dim).__name__})"
            )
        self.observation_space = Box(0.0, 1.0, (dim,), np.float32)
        self._dim = dim

    def observation(self, observation: str) -> NDArray[np.float32]:
        """Hash the words of a text; zeros if it has none."""
        vector = np.zeros(self._dim, dtype=np.float32)
        for word in _WORD.findall(observation.lower()):
            vector[zlib.crc32(word.encode()) % self._dim] += 1.0
        return vector / max(float(np.linalg.norm(vector)), 1.0)
