"""A factory that creates the learner specified by a settings section."""

from __future__ import annotations

from coevo_gym.core.errors import ConfigError
from coevo_gym.trainers.credit import Credit
from coevo_gym.trainers.grpo import GRPO, LearnablePolicy
from coevo_gym.trainers.ppo import PPO
from coevo_gym.trainers.rest import ReST
from coevo_gym.trainers.settings import GRPOConfig, LearnerConfig, PPOConfig, RestConfig

AnyLearner = GRPO | PPO | ReST


def make_learner(
    settings: LearnerConfig, policy: LearnablePolicy, credit: Credit | None = None, seed: int = 0
) -> AnyLearner:
    """Create a learner from settings.

    Args:
        settings: settings, whose ``kind`` selects the learner.
        policy: policy to train.
        credit: credit assignment; by default, the settings specify it. Only learners of kind ``pg``
            accept this argument: PPO uses its own value estimates, and ReST uses scores.
        seed: seed for the learner's own random draws.

    Raises:
        ConfigError: if the learner cannot train this policy, or does not accept ``credit``.
    """
    if credit is not None and not isinstance(settings, GRPOConfig):
        raise ConfigError(
            f"A learner of kind {settings.kind!r} does not use credit assignment. "
            "Omit credit, or set learner.kind=pg."
        )
    if isinstance(settings, PPOConfig):
        return PPO(policy, settings, seed=seed)
    if isinstance(settings, RestConfig):
        return ReST(policy, settings, seed=seed)
    return GRPO(policy, settings, credit=credit, seed=seed)
