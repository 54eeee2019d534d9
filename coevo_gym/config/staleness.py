"""What follows from ``loop.max_staleness``: learner and signals tolerate it, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from coevo_gym.core.task import FrozenModel
from coevo_gym.trainers.settings import UpdateConfig

TOLERATE = ("learner", "curriculum")
"""Sections with a ``max_staleness`` that is the loop's unless it is set."""


def tolerant(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with the loop's ``max_staleness`` in all sections that have one and set none.

    Args:
        tree: sections as mappings or models.
    """
    found = dict(tree)
    loop = found.get("loop", {})
    bound = loop.get("max_staleness", 0) if isinstance(loop, Mapping) else loop.max_staleness
    for name in TOLERATE if bound else ():
        section = found.get(name, {})
        if isinstance(section, Mapping):
            if section.get("kind") != "rest":
                found[name] = {"max_staleness": bound, **section}
        elif isinstance(section, BaseModel):
            known, given = type(section).model_fields, section.model_fields_set
            if "max_staleness" in known and "max_staleness" not in given:
                found[name] = section.model_copy(update={"max_staleness": bound})
    return found


def intolerance(learner: FrozenModel, bound: int) -> str | None:
    """What is wrong with a learner that groups of the loop's staleness are run for in vain."""
    if not isinstance(learner, UpdateConfig) or learner.max_staleness >= bound:
        return None
    return (
        f"learner.max_staleness = {learner.max_staleness} is below loop.max_staleness = {bound}: "
        "groups would be run to be left out. Leave the learner's unset, or lower the loop's."
    )
