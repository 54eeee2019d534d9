"""Benchmark profiles: descriptions of a benchmark's objects and operations for explorers.

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
"""Name of the profile file in a benchmark's folder."""


class Operation(FrozenModel):
    """An operation on objects of one kind.

    Attributes:
        name: plain-language name of the operation.
        does: effect of the operation.
    """

    name: str = Field(min_length=1)
    does: str = Field(min_length=1)


class Entity(FrozenModel):
    """A kind of object in a benchmark's world.

    Attributes:
        name: name of the kind.
        description: a description in one sentence.
        attributes: attribute names with their meanings.
        operations: operations on objects of this kind.
    """

    name: str = Field(min_length=1)
    description: str = Field(min_length=1)
    attributes: Mapping[str, str] = FrozenDict()
    operations: tuple[Operation, ...] = Field(min_length=1)


class Preference(FrozenModel):
    """The size and difficulty of the requests that a model should propose."""

    entities: int = Field(default=2, ge=1)
    """Approximate number of kinds of objects that a request involves."""
    attributes: int = Field(default=3, ge=0)
    """Approximate number of object attributes that a request mentions."""
    operations: int = Field(default=3, ge=1)
    """Approximate number of different operations that a request needs."""
    difficulty: int = Field(default=3, ge=1, le=3)
    """Dependence between operations. 1: operations are independent. 2: some operations use earlier
    results. 3: later operations can be chosen only after seeing earlier results."""


class PreferenceSettings(FrozenModel):
    """Settings for the user requests that a model proposes, which override the benchmark's own."""

    entities: int | None = Field(default=None, ge=1)
    """Approximate number of kinds of objects that a request involves."""
    attributes: int | None = Field(default=None, ge=0)
    """Approximate number of object attributes that a request mentions."""
    operations: int | None = Field(default=None, ge=1)
    """Approximate number of different operations that a request needs."""
    difficulty: int | None = Field(default=None, ge=1, le=3)
    """Dependence between operations. 1: operations are independent. 2: some operations use earlier
    results. 3: later operations can be chosen only after seeing earlier results."""

    def apply_to(self, preference: Preference) -> Preference:
        """Return a benchmark's preference, with the values set here in place of its own."""
        return preference.model_copy(update=self.model_dump(exclude_none=True))


class EnvProfile(FrozenModel):
    """A profile of a benchmark: its users, its objects and the properties of good requests.

    Attributes:
        who: the user who makes requests in this world.
        entities: the kinds of objects.
        rubrics: properties of a good request.
        preference: size and difficulty of the requests that suit this benchmark.
    """

    who: str = Field(min_length=1)
    entities: tuple[Entity, ...] = Field(min_length=1)
    rubrics: tuple[str, ...] = ()
    preference: Preference = Preference()


class Profiled(Benchmark, Protocol):
    """A benchmark that describes its objects and operations in a profile.

    See :func:`require_profiled`.
    """

    @property
    def profile(self) -> EnvProfile:
        """The profile that describes the benchmark's objects and operations."""


def require_profiled(benchmark: Benchmark) -> Profiled:
    """Return the benchmark after checking that it has an :class:`EnvProfile`.

    Raises:
        ConfigError: if the benchmark has no profile.
    """
    if not hasattr(benchmark, "profile"):
        raise ConfigError(
            f"The benchmark {benchmark.name!r} has no profile, so a model cannot explore it. Give "
            "it a `profile` attribute (a coevo_gym.envs.profile.EnvProfile), or set "
            'explorer.kind = "scripted".'
        )
    return cast(Profiled, benchmark)


@lru_cache(maxsize=16)
def read_profile(path: Path) -> EnvProfile:
    """Read a benchmark profile from a TOML file.

    Raises:
        ConfigError: if the file cannot be read, or is not a valid profile.
    """
    try:
        return EnvProfile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise ConfigError(f"{path} is not a valid profile: {error}") from error
