"""The sink interface, and the lookup of sinks by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.registry import SINKS, load_object
from coevo_gym.provision import extra_advice


@dataclass(frozen=True)
class SinkArm:
    """The arm whose metrics a sink receives.

    Attributes:
        run: name of the run.
        arm: name of the arm.
        id: eight hexadecimal digits, unique to the arm and stable when its run is resumed.
        folder: folder of the run; a sink that writes files creates its own folder in it.
        config: the settings of the run and of the arm as JSON, without secrets.
        resumed: True if the sink received metrics of this arm in an earlier process.
    """

    run: str
    arm: str
    id: str
    folder: Path
    config: Mapping[str, Any]
    resumed: bool


class Sink(Protocol):
    """A destination for the metrics of one arm.

    Any callable that takes a :class:`SinkArm` and returns a sink can be configured by its name. If
    a sink raises an error, the error is logged once, the sink gets no more metrics, and the run
    continues.

    Example:
        >>> class Print:
        ...     def __init__(self, arm: SinkArm) -> None:
        ...         self.name = f"{arm.run}, {arm.arm}"
        ...
        ...     def log(self, numbers: Mapping[str, float], step: int) -> None:
        ...         print(self.name, step, numbers["train/success"])
        ...
        ...     def close(self) -> None: ...
    """

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Log numbers.

        Calls arrive in the order of the steps, with several calls per step. Each number arrives
        once, even if the run was killed and resumed.

        Args:
            numbers: values by name, such as ``train/success``, ``eval/success_rate``,
                ``curriculum/pool_size`` or ``evolution/accepted``.
            step: number of learner steps that the arm has done.
        """
        ...

    def close(self) -> None:
        """Save all received numbers; this process sends no more."""
        ...


MakeSink = Callable[[SinkArm], Sink]


def find_sink(name: str) -> MakeSink:
    """Return the callable that creates sinks of this name.

    Args:
        name: a sink of this package or of an installed one, or ``"module:object"``, where the
            module may be in the current folder.

    Raises:
        ConfigError: if there is no such sink.
        ImportError: if the package that the sink needs is not installed.
    """
    if ":" in name:
        return _object(name)
    found: MakeSink = SINKS.load(name)
    if name in SINKS.built_in:
        package = find_spec(name)
        if package is None or package.origin is None:  # a plain folder of that name does not count
            raise ImportError(
                f"The sink {name!r} needs a package that is not installed. {extra_advice(name)}."
            )
    return found


def check_sinks(names: Iterable[str]) -> None:
    """Check that all sinks exist, before a run begins.

    Raises:
        ConfigError, ImportError: see :func:`find_sink`.
    """
    for name in names:
        find_sink(name)


def _object(name: str) -> MakeSink:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found: MakeSink = load_object(name)
    except Exception as error:  # importing third-party code can raise anything
        raise ConfigError(
            f"sinks: cannot import {name!r}: {type(error).__name__}: {error}. Use the form "
            "module:object, with a module that is installed or in the current folder."
        ) from error
    if not callable(found):
        raise ConfigError(
            f"sinks: {name!r} is {found!r}, which is not callable. Name a class or a function that "
            "creates a sink."
        )
    return found
