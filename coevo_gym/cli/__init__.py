"""The ``coevo`` command. Each group of subcommands has its own file."""

from coevo_gym.cli.app import app, main

__all__ = ["app", "main"]
