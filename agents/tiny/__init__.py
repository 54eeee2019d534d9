"""A small policy, trained from scratch."""

from coevo_gym.agents.tiny.policy import TinyConfig, TinyPolicy

__all__ = ["TinyConfig", "TinyPolicy"]
