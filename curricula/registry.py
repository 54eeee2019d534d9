"""Curricula by the names of methods, for samplers: there is no run that assembles one."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.registry import METHODS
from coevo_gym.curricula.methods.coevolve import CoEvolve, CoEvolveConfig


def make_curriculum(name: str, **settings: Any) -> CoEvolve:
    """The curriculum of a method.

    Args:
        name: of a method; ``METHODS.names()`` lists them.
        **settings: other fields of :class:`CoEvolveConfig`.

    Raises:
        ConfigError: if there is no such name, or a setting is out of bounds.

    Example:
        >>> make_curriculum("static", initial_size=50).config.evolve
        'off'
    """
    sets = METHODS.load(name).sets
    own = {
        key.removeprefix("curriculum."): value
        for key, value in sets.items()
        if key.startswith("curriculum.")
    }
    try:
        return CoEvolve(CoEvolveConfig(**{**settings, **own}))
    except ValidationError as error:
        raise ConfigError(f"The curriculum of {name!r}: {error}") from error
