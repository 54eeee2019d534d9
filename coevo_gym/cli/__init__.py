"""The ``coevo`` command: one file for each group of verbs."""

from coevo_gym.cli.app import app, main

__all__ = ["app", "main"]
