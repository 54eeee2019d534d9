"""Agents that act by chatting with a language model."""

from coevo_gym.agents.chat.agent import ChatAgent, ChatConfig

__all__ = ["ChatAgent", "ChatConfig"]
