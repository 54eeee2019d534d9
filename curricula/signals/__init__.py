"""Signals: weaknesses detected in rollouts."""
