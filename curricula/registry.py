"""Curricula by name."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from coevo_gym.core.errors import ConfigError
from coevo_gym.curricula.methods.coevolve import CoEvolve, CoEvolveConfig

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "coevolve": {"evolve": "guided"},
        "static": {"evolve": "off"},
        "random_append": {"evolve": "random"},
        "signal_blind": {"evolve": "blind"},
    }
)
"""Names and the settings that define them."""


def make_curriculum(name: str, **settings: Any) -> CoEvolve:
    """A curriculum by name.

    Args:
        name: one of :data:`PRESETS`.
        **settings: other fields of :class:`CoEvolveConfig`.

    Raises:
        ConfigError: if there is no such name, or a setting is out of bounds.

    Example:
        >>> make_curriculum("static", initial_size=50).config.evolve
        'off'
    """
    if name not in PRESETS:
        close = get_close_matches(name, PRESETS, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Choose one of: {', '.join(PRESETS)}."
        raise ConfigError(f"Unknown curriculum {name!r}. {hint}")
    try:
        return CoEvolve(CoEvolveConfig(**{**settings, **PRESETS[name]}))
    except ValidationError as error:
        raise ConfigError(f"Curriculum {name!r}: {error}") from error
