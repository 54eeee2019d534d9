"""Agents: scripted, random and trainable ones."""
