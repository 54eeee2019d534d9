"""Many episodes in lock step, each with its own task.

Gymnasium's vector envs send the same ``options`` to all sub-envs and reset finished ones by
themselves, which throws away an LLM's generation. Here ``reset`` takes a task per env and a mask,
and a finished env waits until it is reset (``autoreset_mode="Disabled"``) unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from coevo_gym.envs.base import TaskEnv
from coevo_gym.errors import ConfigError, ResetNeeded
from coevo_gym.task import Task
from coevo_gym.trajectory import View

Observations = tuple[str, ...]


class TaskVectorEnv(VectorEnv[Observations, Sequence[str], NDArray[Any]]):
    """``num_envs`` copies of one env, stepped together in this process.

    Args:
        env_id: Gymnasium id of the env.
        num_envs: how many.
        autoreset_mode: ``"Disabled"``: stepping a finished env raises ``ResetNeeded``.
            ``"NextStep"``: the step after an end resets the env and ignores its action.
        max_episode_steps: most steps of an episode; mapped to the env's ``max_steps``.
        **kwargs: arguments of the env.

    Attributes:
        next_tasks: for each env, the Task, name or id that its next automatic reset begins (used
            once); None lets the env pick.

    Example:
        >>> envs = TaskVectorEnv("CoEvolve-WebShop-v0", num_envs=2)
        >>> observations, infos = envs.reset(seed=0)
        >>> len(observations)
        2
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.DISABLED,
        max_episode_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if num_envs < 1:
            raise ConfigError(f"num_envs must be a positive int, actual: {num_envs}")
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            raise ConfigError("autoreset_mode must be Disabled or NextStep, actual: SameStep")
        if max_episode_steps is not None:
            kwargs["max_steps"] = max_episode_steps
        self.num_envs = num_envs
        self.envs = [gym.make(env_id, disable_env_checker=True, **kwargs) for _ in range(num_envs)]
        self.metadata = {**self.envs[0].metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = self.envs[0].render_mode
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.next_tasks: list[Task | str | None] = [None] * num_envs
        self._observations = [""] * num_envs
        self._over = np.ones(num_envs, dtype=np.bool_)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The task of each env's current episode."""
        return tuple(self.unwrapped_env(i).task for i in range(self.num_envs))

    @property
    def views(self) -> tuple[View, ...]:
        """What an agent may see in each env."""
        return tuple(self.unwrapped_env(i).view for i in range(self.num_envs))

    def unwrapped_env(self, index: int) -> TaskEnv:
        """The bare env at ``index``."""
        return cast(TaskEnv, self.envs[index].unwrapped)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observations, dict[str, Any]]:
        """Begin episodes.

        Args:
            seed: one for each env, or an int ``s`` for ``s, s + 1, …``.
            options: ``"tasks"``: a Task, a name or id, or None for each env;
                ``"reset_mask"``: (num_envs,) bool array, True where to reset (default: all).

        Returns:
            One observation per env (the latest one where it was not reset), and the infos of
            those that were.
        """
        options = dict(options or {})
        mask = self._mask(options.pop("reset_mask", None))
        tasks = self._per_env("tasks", options.pop("tasks", None))
        if options:
            raise ConfigError(
                f'reset takes options "tasks" and "reset_mask", actual keys: {sorted(options)}'
            )
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
        seeds = self._per_env("seed", seeds)
        infos: dict[str, Any] = {}
        for index in np.flatnonzero(mask).tolist():
            info = self._reset_one(index, seeds[index], tasks[index])
            infos = self._add_info(infos, info, index)
        return tuple(self._observations), infos

    def step(
        self, actions: Sequence[str]
    ) -> tuple[
        Observations, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
    ]:
        """Step every env.

        Raises:
            ResetNeeded: if one is over and ``autoreset_mode`` is Disabled; none is stepped then.
        """
        actions = self._per_env("actions", actions)
        if self.autoreset_mode is AutoresetMode.DISABLED and self._over.any():
            raise ResetNeeded(
                f"Envs {np.flatnonzero(self._over).tolist()} have no running episode. Call "
                'reset(options={"reset_mask": mask}) for them first.'
            )
        rewards = np.zeros(self.num_envs)
        terminated = np.zeros(self.num_envs, dtype=np.bool_)
        truncated = np.zeros(self.num_envs, dtype=np.bool_)
        infos: dict[str, Any] = {}
        for index, env in enumerate(self.envs):
            if self._over[index]:
                task, self.next_tasks[index] = self.next_tasks[index], None
                info = self._reset_one(index, None, task)
            else:
                observation, reward, terminated[index], truncated[index], info = env.step(
                    actions[index]
                )
                self._observations[index], rewards[index] = observation, float(reward)
                self._over[index] = terminated[index] or truncated[index]
            infos = self._add_info(infos, info, index)
        return tuple(self._observations), rewards, terminated, truncated, infos

    def render(self) -> tuple[Any, ...]:
        """What each env renders."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close every env."""
        for env in getattr(self, "envs", ()):
            env.close()

    def _reset_one(self, index: int, seed: int | None, task: Task | str | None) -> dict[str, Any]:
        options = None
        if task is not None:
            options = {"task" if isinstance(task, Task) else "task_id": task}
        self._observations[index], info = self.envs[index].reset(seed=seed, options=options)
        self._over[index] = False
        return info

    def _mask(self, mask: Any) -> NDArray[np.bool_]:
        if mask is None:
            return np.ones(self.num_envs, dtype=np.bool_)
        chosen: NDArray[np.bool_] = np.asarray(mask)
        if chosen.shape != (self.num_envs,) or chosen.dtype != np.bool_:
            raise ConfigError(
                f"reset_mask must be a bool array of shape ({self.num_envs},), "
                f"actual: {chosen.dtype} of shape {chosen.shape}"
            )
        return chosen

    def _per_env(self, what: str, values: Sequence[Any] | None) -> Sequence[Any]:
        if values is None:
            return [None] * self.num_envs
        if isinstance(values, str) or len(values) != self.num_envs:
            raise ConfigError(
                f"{what} needs one entry for each of {self.num_envs} envs, actual: {values!r}"
            )
        return values
