"""Functions that create the curriculum of a named method, for samplers outside a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.registry import METHODS
from coevo_gym.core.sections import nested, overlay
from coevo_gym.core.task import Task
from coevo_gym.curricula.growth.signal_growth import NoGrowth
from coevo_gym.curricula.pool_curriculum import CurriculumConfig, PoolCurriculum


def make_curriculum(
    name: str,
    *,
    tasks: Sequence[Task] = (),
    native: Sequence[Task] | None = None,
    grows: bool = True,
    **settings: Any,
) -> PoolCurriculum:
    """Create a method's curriculum.

    Args:
        name: name of the method; ``METHODS.names()`` lists all names.
        tasks: training tasks to start with.
        native: training tasks to plan targets from; see :meth:`CurriculumConfig.make`.
        grows: False for a task set that does not grow.
        **settings: other fields of :class:`CurriculumConfig`.

    Raises:
        ConfigError: if the name is unknown, or a setting is out of bounds.

    Example:
        >>> make_curriculum("plr").metrics()["pool_size"]
        0.0
    """
    own = nested(METHODS.load(name).sets).get("curriculum", {})
    try:
        base = CurriculumConfig(**settings).model_dump()
        config = CurriculumConfig(**overlay(CurriculumConfig, base, own))
    except ValidationError as error:
        raise ConfigError(f"Invalid settings for the curriculum {name!r}: {error}") from error
    if not grows:
        config = config.model_copy(update={"growth": NoGrowth()})
    return config.make(tasks, native=native)
