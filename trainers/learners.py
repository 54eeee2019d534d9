"""The learner that a section of settings names."""

from __future__ import annotations

from coevo_gym.core.errors import ConfigError
from coevo_gym.trainers.credit import Credit
from coevo_gym.trainers.grpo import GRPO, Learnable
from coevo_gym.trainers.ppo import PPO
from coevo_gym.trainers.rest import ReST
from coevo_gym.trainers.settings import GRPOConfig, LearnerConfig, PPOConfig, RestConfig

AnyLearner = GRPO | PPO | ReST


def make_learner(
    settings: LearnerConfig, policy: Learnable, credit: Credit | None = None, seed: int = 0
) -> AnyLearner:
    """Make a learner.

    Args:
        settings: which one, by their ``kind``, and how it learns.
        policy: what to train.
        credit: how rollouts are judged; default: as the settings say. Only a learner of kind ``pg``
            has one: PPO judges by its own values, ReST by the scores.
        seed: of the learner's own draws.

    Raises:
        ConfigError: if the learner cannot train such a policy, or would not ask the credit.
    """
    if credit is not None and not isinstance(settings, GRPOConfig):
        raise ConfigError(
            f"A learner of kind {settings.kind!r} judges rollouts by itself and asks no credit. "
            "Leave the credit out, or set learner.kind=pg."
        )
    if isinstance(settings, PPOConfig):
        return PPO(policy, settings, seed=seed)
    if isinstance(settings, RestConfig):
        return ReST(policy, settings, seed=seed)
    return GRPO(policy, settings, credit=credit, seed=seed)
