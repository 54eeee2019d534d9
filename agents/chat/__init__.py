"""Agents that talk to a language model."""

from coevo_gym.agents.chat.agent import ChatAgent, ChatConfig

__all__ = ["ChatAgent", "ChatConfig"]
