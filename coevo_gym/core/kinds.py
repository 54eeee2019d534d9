"""Kinds of signals and of contexts: open names, each with a label and a colour.

A kind is any short name. Whoever brings one registers it, so that reports show its label in its
colour; a kind that nobody registered is shown by its name, in grey.

    >>> register_kind(Kind("stuck", "goes in circles", colour="#2f7d4f", dark="#6fce97"))
    >>> kind_of("stuck").label
    'goes in circles'
    >>> kind_of("never heard of").label
    'never heard of'
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coevo_gym.core.errors import ConfigError

KIND_NAME = r"^[a-z][a-z0-9_]{0,39}$"
"""What the name of a kind looks like."""

GREY, DARK_GREY = "#7a828b", "#98a1ab"

_COLOUR = re.compile(r"#[0-9a-f]{6}")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of signal, or a reason to explore that is none.

    Attributes:
        name: what signals and contexts hold: lower-case letters, digits and ``_``.
        label: what people read.
        colour: ``#rrggbb`` on a light page.
        dark: ``#rrggbb`` on a dark page.
        fires: whether rollouts fire it. A context may also have a kind that no signal leads to.
    """

    name: str
    label: str
    colour: str = GREY
    dark: str = DARK_GREY
    fires: bool = True


_KINDS: dict[str, Kind] = {}


def register_kind(kind: Kind) -> None:
    """Make a kind known; one of the same name is replaced.

    Raises:
        ConfigError: if its name or a colour is not of the form that it must have.
    """
    if not re.fullmatch(KIND_NAME, kind.name):
        raise ConfigError(
            f"A kind's name is of lower-case letters, digits and _, begins with a letter and has "
            f"at most 40 characters, actual: {kind.name!r}"
        )
    for colour in (kind.colour, kind.dark):
        if not _COLOUR.fullmatch(colour):
            raise ConfigError(
                f"A colour of the kind {kind.name!r} must be like '#3f6fa8', actual: {colour!r}"
            )
    _KINDS[kind.name] = kind


def kinds() -> tuple[Kind, ...]:
    """All registered kinds, in the order in which they came."""
    return tuple(_KINDS.values())


def kind_of(name: str) -> Kind:
    """The kind of that name; a grey one if nobody has registered it."""
    return _KINDS.get(name) or Kind(name, name)
