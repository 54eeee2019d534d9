"""Docstrings as mkdocstrings shows them: roles become code, an example is an example.

What callers use comes first in a class, and what a subclass sets comes last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import griffe

FIRST = ("reset", "step", "render", "close", "take", "report", "give_back")
"""Methods that the description of an env, a sampler or a session begins with."""
ROLE = re.compile(r":(?:class|meth|func|mod|data|attr):`~?([^`]+)`")


class Docstrings(griffe.Extension):
    """Rewrites each docstring before it is parsed, and orders the members of classes."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Turn what Sphinx would read into Markdown."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Say in which order the members of an env, a sampler or a session are shown."""
        if "step" in cls.members or "take" in cls.members:
            cls.exports = order_members(cls.members)


def order_members(members: Mapping[str, griffe.Object | griffe.Alias]) -> list[str]:
    """Names of a class's members: those in FIRST, methods and properties, then class attributes.

    Within each part they keep their order in the source.

    Example:
        >>> members = {
        ...     "hook": griffe.Attribute("hook"),
        ...     "info": griffe.Attribute("info"),
        ...     "cut": griffe.Function("cut"),
        ...     "step": griffe.Function("step"),
        ...     "reset": griffe.Function("reset"),
        ... }
        >>> members["info"].labels.add("property")
        >>> order_members(members)
        ['reset', 'step', 'info', 'cut', 'hook']
    """

    def place(name: str) -> tuple[bool, int]:
        member = members[name]
        hook = not member.is_function and "property" not in member.labels
        return hook, FIRST.index(name) if name in FIRST else len(FIRST)

    return sorted(members, key=place)


def as_markdown(text: str) -> str:
    r"""Convert a docstring to Markdown with Google's sections.

    Example:
        >>> as_markdown("See :func:`next_target`, ``[0, 1]``.\n\nExample:\n    >>> 1")
        'See `next_target`, `[0, 1]`.\n\nExamples:\n    >>> 1'
    """
    text = ROLE.sub(r"`\1`", text).replace("``", "`")
    return re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
