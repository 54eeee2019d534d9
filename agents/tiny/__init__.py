"""A small policy that is trained from scratch."""

from coevo_gym.agents.tiny.policy import TinyConfig, TinyPolicy

__all__ = ["TinyConfig", "TinyPolicy"]
