"""A guided episode of a sampler: its observations and its record."""

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
    """One episode of a sampler, shown through the interface of its guidance.

    Args:
        episode: the episode to run, with its guidance.

    Attributes:
        changes: True if the guidance has an interface.
    """

    def __init__(self, episode: TrainingEpisode) -> None:
        self._episode = episode
        self.changes = episode.interface is not IDENTITY
        self._seen = Seen(episode.shown)

    @property
    def observation(self) -> str:
        """The current observation as the interface shows it."""
        return self._seen.view.observation

    def look(
        self, env: TaskEnv, observation: Any, info: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Return the observation and info that a reset or a step passes to the agent.

        Args:
            env: the bare env.
            observation: the observation returned by the wrapped env.
            info: the info returned by the wrapped env.

        Returns:
            The observation and info as the interface shows them, with the guidance under
            ``"cues"``.

        Raises:
            ConfigError: if there is an interface and the observation is not text, or if a wrapper
                changes the number of steps.
        """
        told = {**info, "cues": self._episode.cues}
        if not self.changes:
            return observation, told
        if not isinstance(observation, str):
            raise ConfigError(
                "An interface requires text observations, but the env returned "
                f"{type(observation).__name__}. Apply wrappers that convert the text around "
                "the sampler, not inside it."
            )
        if (end := env.info["end_reason"]) and EndReason(end).lost:
            return self.observation, told  # the step had no result
        own = env.view
        shown = self._seen.look(replace(own, observation=observation))
        texts = {key: text for key, text in shown.info.items() if text != own.info[key]}
        return shown.observation, {**told, **texts}

    def record(self, env: TaskEnv) -> Trajectory:
        """Return the record of the episode that has ended in ``env``."""
        shown = self._seen.texts[: len(env.view.history)]
        return self._episode.record(env, (), shown)
