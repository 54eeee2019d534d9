"""Installation of the engine and data, neither of which this benchmark needs."""

from __future__ import annotations

from pathlib import Path

from coevo_gym.core.errors import ConfigError
from coevo_gym.provision import Installation

from .tasks import N_ROOMS


def install(source: Path | None) -> Path:
    """Install engine and data in the benchmark's folder; see :mod:`coevo_gym.provision`.

    Raises:
        ConfigError: always, because there is nothing to install.
    """
    raise ConfigError("newbench needs no installation.")


def installation() -> Installation:
    """Return the state of the installation."""
    rooms = f"{N_ROOMS} rooms, made from their numbers"
    return Installation(True, "own engine, in process", rooms, "no code is run")
