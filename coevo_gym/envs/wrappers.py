"""Wrappers that turn text envs into array envs, for libraries such as Stable-Baselines3."""

from __future__ import annotations

import re
import zlib
from typing import Any, TypeGuard, cast

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Space, Tuple
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.spaces import UnicodeText, clean_text
from coevo_gym.envs.base import ACTION_CAP, ACTION_SPACE, TaskEnv
from coevo_gym.envs.checks import check_flag, is_positive_int

_WORD = re.compile(r"\w+")


class ChooseAction(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """A wrapper whose actions are indices into the benchmark's ``choices(view)``.

    ``info["action_mask"]`` is a (max_choices,) int8 array, 1 for each valid index. At least one
    index is always valid: if the benchmark offers no choices, index 0 stands for an empty action.
    An index that the mask excludes also sends an empty action, which the env treats as invalid.
    :meth:`action_masks` returns the same mask for learners that call it, such as MaskablePPO.

    With ``observe_choices=True``, an observation is a dict with three keys: ``"obs"``, the
    observation of the env; ``"choices"``, the ``max_choices`` texts to choose from, padded with "";
    and ``"action_mask"``, the same mask as in info. A learner can then distinguish the choices by
    their text.

    Args:
        env: a coevo_gym env.
        max_choices: size of the Discrete action space; further choices are not offered.
        observe_choices: True to include the choices in observations.

    Attributes:
        choices: the action text for each valid index.

    Example:
        >>> import coevo_gym, gymnasium as gym
        >>> env = ChooseAction(gym.make("CoEvolve-WebShop-v0"), max_choices=8, observe_choices=True)
        >>> observation, info = env.reset(seed=0)
        >>> len(observation["choices"]), observation["action_mask"].shape
        (8, (8,))
    """

    def __init__(
        self, env: gym.Env[Any, Any], max_choices: int = 64, *, observe_choices: bool = False
    ) -> None:
        RecordConstructorArgs.__init__(
            self, max_choices=max_choices, observe_choices=observe_choices
        )
        gym.Wrapper.__init__(self, env)
        if not is_positive_int(max_choices):
            raise ValueError(
                f"max_choices must be a positive int, got {max_choices!r} "
                f"({type(max_choices).__name__})"
            )
        check_flag("observe_choices", observe_choices)
        self.action_space = Discrete(max_choices)
        if observe_choices:
            self.observation_space = Dict(
                {
                    "obs": env.observation_space,
                    "choices": batch_space(ACTION_SPACE, max_choices),
                    "action_mask": MultiBinary(max_choices),
                }
            )
        self._size, self._observed = int(max_choices), observe_choices
        self._benchmark = get_benchmark(cast(TaskEnv, env.unwrapped).benchmark)
        self.choices: tuple[str, ...] = ()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the env and offer the first choices."""
        return self._offer_choices(*self.env.reset(seed=seed, options=options))

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Execute the choice at the given index.

        Raises:
            ValueError: if the index is outside the action space.
        """
        if not 0 <= action < self._size:
            raise ValueError(f"action must be an index from 0 to {self._size - 1}, got {action}")
        text = self.choices[action] if action < len(self.choices) else ""
        observation, reward, terminated, truncated, info = self.env.step(text)
        observation, info = self._offer_choices(observation, info)
        return observation, reward, terminated, truncated, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Return a bool array of shape (max_choices,) that is True for each valid index."""
        return np.arange(self._size) < len(self.choices)

    def _offer_choices(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        offered = self._benchmark.choices(cast(TaskEnv, self.unwrapped).view)[: self._size]
        self.choices = tuple(clean_text(text, ACTION_CAP) for text in offered) or ("",)
        mask = self.action_masks().astype(np.int8)
        info = {**info, "action_mask": mask}
        if not self._observed:
            return observation, info
        choices = (*self.choices, *[""] * (self._size - len(self.choices)))
        return {"obs": observation, "choices": choices, "action_mask": mask.copy()}, info


class HashText(gym.ObservationWrapper[Any, Any, Any], RecordConstructorArgs):
    """A wrapper that replaces text with hashed word counts, as a unit vector of shape (dim,).

    Each page is hashed together with the agent's current instruction, because most pages do not
    repeat the instruction. Instruction words are hashed separately from page words, and both parts
    have the same weight. For the choices of :class:`ChooseAction`, and for stacked pages, the
    result is an (n, dim) array with one row per text. A choice is hashed without the instruction,
    and an empty choice is a row of zeros. Observations that are not text are returned unchanged.

    Args:
        env: an env whose observations are texts, tuples of texts, or dicts of these.
        dim: size of a vector; words share an index if their CRC-32 is equal modulo ``dim``.

    Example:
        >>> import coevo_gym, gymnasium as gym
        >>> env = HashText(gym.make("CoEvolve-WebShop-v0"), dim=32)
        >>> env.reset(seed=0)[0].shape
        (32,)
    """

    def __init__(self, env: gym.Env[Any, Any], dim: int = 512) -> None:
        RecordConstructorArgs.__init__(self, dim=dim)
        gym.ObservationWrapper.__init__(self, env)
        if not is_positive_int(dim):
            raise ValueError(f"dim must be a positive int, got {dim!r} ({type(dim).__name__})")
        self._dim = int(dim)
        self._texts = env.observation_space
        self.observation_space = self._hashed_space(self._texts)

    def observation(self, observation: Any) -> Any:
        """Hash the words of an observation and of the current instruction."""
        bare = self.unwrapped
        goal = self._word_counts(bare.instruction, "goal ") if isinstance(bare, TaskEnv) else 0.0
        return self._hash(self._texts, observation, goal)

    def _hashed_space(self, space: Space[Any]) -> Space[Any]:
        if isinstance(space, Dict):
            return Dict({key: self._hashed_space(part) for key, part in space.items()})
        if _are_texts(space):
            return Box(0.0, 1.0, (len(space), self._dim), np.float32)
        return Box(0.0, 1.0, (self._dim,), np.float32) if isinstance(space, UnicodeText) else space

    def _hash(self, space: Space[Any], value: Any, goal: NDArray[np.float64] | float) -> Any:
        if isinstance(space, Dict):
            return {
                key: self._hash(part, value[key], 0.0 if key == "choices" else goal)
                for key, part in space.items()
            }
        if _are_texts(space):
            return np.stack([self._hash(space[0], text, goal) for text in value])
        if not isinstance(space, UnicodeText):
            return value
        return _normalise(self._word_counts(value) + goal).astype(np.float32)

    def _word_counts(self, text: str, place: str = "") -> NDArray[np.float64]:
        """Return a string's hashed word counts as a unit vector of shape (dim,).

        ``place`` is a prefix that keeps these words distinct from words in other places.
        """
        counts = np.zeros(self._dim)
        for word in _WORD.findall(text.lower()):
            counts[zlib.crc32((place + word).encode()) % self._dim] += 1.0
        return _normalise(counts)


def _are_texts(space: Space[Any]) -> TypeGuard[Tuple[Any]]:
    return isinstance(space, Tuple) and all(isinstance(part, UnicodeText) for part in space)


def _normalise(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale a vector to length 1. A zero vector stays zero."""
    return vector / max(float(np.linalg.norm(vector)), 1.0)
