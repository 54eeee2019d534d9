"""Profiles: the things in a benchmark's world and their operations, for a model that explores it.

The profile of a benchmark is the file ``profile.toml`` in its folder. It describes the world in
general terms and contains no task of any split.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Protocol, cast

from pydantic import Field, ValidationError

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenDict, FrozenModel

FILE = "profile.toml"
"""Name of the file in a benchmark's folder."""


class Operation(FrozenModel):
    """An operation on things of one kind.

    Attributes:
        name: its name, in words.
        does: its effect.
    """

    name: str = Field(min_length=1)
    does: str = Field(min_length=1)


class Entity(FrozenModel):
    """A kind of things in the world.

    Attributes:
        name: name of the kind.
        description: a description in one sentence.
        attributes: meaning of each attribute, by its name.
        operations: operations on such things.
    """

    name: str = Field(min_length=1)
    description: str = Field(min_length=1)
    attributes: Mapping[str, str] = FrozenDict()
    operations: tuple[Operation, ...] = Field(min_length=1)


class EnvProfile(FrozenModel):
    """The profile of a benchmark.

    Attributes:
        who: the person who makes requests there.
        entities: the kinds of things.
        rubrics: properties of a good request.
    """

    who: str = Field(min_length=1)
    entities: tuple[Entity, ...] = Field(min_length=1)
    rubrics: tuple[str, ...] = ()


class Preference(FrozenModel):
    """The requests that a model should look for, measured by the parts of a profile."""

    entities: int = Field(default=2, ge=1)
    """Kinds of things that a request involves, roughly."""
    attributes: int = Field(default=3, ge=0)
    """Attributes of these things that a request mentions, roughly."""
    operations: int = Field(default=3, ge=1)
    """Different operations that a request needs, roughly."""
    difficulty: int = Field(default=3, ge=1, le=3)
    """Dependence of the operations: 1, none depends on another; 2, some use the result of an
    earlier one; 3, later ones can be decided only from the results of earlier ones."""


class Profiled(Benchmark, Protocol):
    """A benchmark with a profile; see :func:`profiled`."""

    @property
    def profile(self) -> EnvProfile:
        """The profile."""


def profiled(benchmark: Benchmark) -> Profiled:
    """Return the benchmark if it has a profile.

    Raises:
        ConfigError: if it has none.
    """
    if not hasattr(benchmark, "profile"):
        raise ConfigError(
            f"The benchmark {benchmark.name!r} has no profile for a model that explores. Give it "
            "an attribute `profile`, a coevo_gym.envs.profile.EnvProfile, or set "
            'explorer.kind = "scripted".'
        )
    return cast(Profiled, benchmark)


@lru_cache(maxsize=16)
def read_profile(path: Path) -> EnvProfile:
    """Return the profile in a TOML file.

    Raises:
        ConfigError: if the file cannot be read, or is no profile.
    """
    try:
        return EnvProfile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise ConfigError(f"{path} is not a valid profile: {error}") from error
