"""Parameters of which the default suite runs a sample; ``make test-slow`` runs all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def sample_params(values: Iterable[Any], every: int, name: Callable[[Any], str] = str) -> list[Any]:
    """Return parameters that are slow, except every n-th.

    Args:
        values: the parameters' values.
        every: n.
        name: returns the id of a value.
    """
    return [
        pytest.param(value, id=name(value), marks=[pytest.mark.slow] if place % every else [])
        for place, value in enumerate(values)
    ]


def slow_for(values: Iterable[str], *slow: str) -> list[Any]:
    """Return parameters of which those that are named are slow."""
    return [
        pytest.param(value, marks=[pytest.mark.slow] if value in slow else []) for value in values
    ]
