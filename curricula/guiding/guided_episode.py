"""An episode of a sampler that is guided: what is shown of it, and its record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import IDENTITY
from coevo_gym.core.trajectory import EndReason, Trajectory
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes.episode import TrainingEpisode
from coevo_gym.episodes.shown import Seen


class GuidedEpisode:
    """One episode of a sampler, shown through its interface.

    Args:
        episode: what is run, with its guidance.

    Attributes:
        changes: whether it has an interface.
    """

    def __init__(self, episode: TrainingEpisode) -> None:
        self._episode = episode
        self.changes = episode.interface is not IDENTITY
        self._seen = Seen(episode.shown)

    @property
    def observation(self) -> str:
        """What is shown now, if it is shown through an interface."""
        return self._seen.view.observation

    def look(
        self, env: TaskEnv, observation: Any, info: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """What a reset or a step gives to whoever acts.

        Args:
            env: the bare env.
            observation: what the env, wrapped as it is, has given.
            info: the same.

        Returns:
            Both as the interface shows them; what is told stands under ``"cues"``.

        Raises:
            ConfigError: if there is an interface, and the observation is no text; or if a wrapper
                makes another number of steps of one.
        """
        told = {**info, "cues": self._episode.cues}
        if not self.changes:
            return observation, told
        if not isinstance(observation, str):
            raise ConfigError(
                f"An interface shows text, but the env gives a {type(observation).__name__}. Put "
                "wrappers that make something else of the text around the sampler, not inside."
            )
        if (end := env.info["end_reason"]) and EndReason(end).lost:
            return self.observation, told  # nothing came of the step
        own = env.view
        shown = self._seen.look(replace(own, observation=observation))
        texts = {key: text for key, text in shown.info.items() if text != own.info[key]}
        return shown.observation, {**told, **texts}

    def record(self, env: TaskEnv) -> Trajectory:
        """The record of the episode that has ended in ``env``."""
        shown = self._seen.texts[: len(env.view.history)]
        return self._episode.record(env, (), shown)
