"""The ``coevo`` command, with one file for each group of subcommands."""

from coevo_gym.cli.app import app, main

__all__ = ["app", "main"]
