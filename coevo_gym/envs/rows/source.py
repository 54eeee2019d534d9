"""The source of a benchmark of rows: the file and functions needed to recreate it."""

from __future__ import annotations

import inspect
import pickle
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from pydantic import Field, field_validator

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.own_code import (
    NAMESPACE,
    absolute_import_path,
    is_import_path,
    load_own_object,
    origin_of,
)
from coevo_gym.core.task import FrozenDict, FrozenModel

SHARES: Mapping[str, float] = FrozenDict(train=0.8, val=0.1, test=0.1)
"""Default shares of the splits."""
MEMORY = ":memory:"
"""The ``file`` of a source if its rows or functions exist only in the current process."""
FUNCTIONS = ("verify", "respond", "env", "propose", "reference", "accept")
"""Arguments of ``from_rows`` that are functions."""
MODEL = "model"
"""The value of ``propose`` that makes a run's explorer, a language model, propose rows."""


def resolve_path(folder: Path, place: str) -> str:
    """Make a file path or import path absolute, resolving it against a folder.

    The values "" and ``model``, and import paths of modules, are returned unchanged.
    """
    if is_import_path(place):
        return absolute_import_path(folder, place)
    return place if place in ("", MODEL) else str((folder / Path(place).expanduser()).resolve())


class RowsSource(FrozenModel):
    """Arguments of ``coevo_gym.from_rows``: a JSONL file of rows, and functions' import paths.

    The import path of a function is ``FILE.py:NAME`` or ``MODULE:NAME``.
    """

    file: str = ""
    """JSONL file of the benchmark's rows; "" for a benchmark that is not made of rows.
    ``:memory:`` if the rows or a function exist only in the process that called ``from_rows``."""
    verify: str = ""
    """Function that judges an answer to a row."""
    respond: str = ""
    """Function that plays the user in a conversation."""
    env: str = ""
    """Class or function that creates an env for each episode."""
    propose: str = ""
    """Function that proposes new rows, or ``model`` to let the explorer's model propose them."""
    reference: str = ""
    """Function that returns a correct answer to a row."""
    accept: str = ""
    """Function that checks a proposed row."""
    tools: tuple[str, ...] = ()
    """Functions and classes that the agent can call."""
    max_turns: int = Field(default=10, ge=1)
    """Maximum number of answers per episode, with ``respond``, ``env`` or ``tools``."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Maximum seconds for one call of a function."""
    shares: Mapping[str, float] = SHARES
    """Shares of the splits ``train``, ``val`` and ``test``."""

    @field_validator("file", *FUNCTIONS, "tools")
    @classmethod
    def _make_absolute(cls, place: str | tuple[str, ...]) -> str | tuple[str, ...]:
        """Make paths absolute, so that a run can be resumed in any folder."""
        if isinstance(place, tuple):
            return tuple(resolve_path(Path(), one) for one in place)
        return resolve_path(Path(), place)

    @property
    def code_origins(self) -> tuple[str, ...]:
        """The Python files and modules that define the functions."""
        places = (*(getattr(self, name) for name in FUNCTIONS), *self.tools)
        return tuple(dict.fromkeys(filter(None, map(origin_of, places))))

    def load_functions(self) -> dict[str, Any]:
        """Load the functions to pass to ``from_rows``. This runs the files that define them.

        Raises:
            ConfigError: if a function cannot be loaded.
        """
        places = {name: getattr(self, name) for name in FUNCTIONS}
        loaded = {
            name: place if place == MODEL else load_function(place)
            for name, place in places.items()
            if place
        }
        return {**loaded, "tools": tuple(map(load_function, self.tools))}


def source_of(
    file: object, functions: Mapping[str, object], tools: Sequence[object], **settings: Any
) -> RowsSource:
    """Return the source from which other processes can recreate a benchmark.

    Its file is ``:memory:`` if they cannot, because rows or a function exist only in this process.
    """
    places = {
        name: function if isinstance(function, str) else import_path_of(function)
        for name, function in functions.items()
        if function is not None
    }
    of_tools = tuple(map(import_path_of, tools))
    if not isinstance(file, (str, Path)) or not all((*places.values(), *of_tools)):
        return RowsSource(file=MEMORY)
    return RowsSource(file=str(file), tools=of_tools, **places, **settings)


def load_function(place: str) -> Callable[..., Any]:
    """Import a function from a Python file or module.

    Args:
        place: ``"FILE.py:FUNCTION"``, or ``"MODULE:FUNCTION"``.

    Raises:
        ConfigError: if the file cannot be run, or has no such function.
    """
    if not is_import_path(place):
        raise ConfigError(f"A function must have the form FILE.py:FUNCTION, got {place!r}.")
    function: Callable[..., Any] = load_own_object(place)
    if not callable(function):
        raise ConfigError(f"{place} is not a function (type {type(function).__name__}).")
    return function


def import_path_of(function: object) -> str:
    """Return a function's import path, or "" if other processes cannot import the function."""
    name = getattr(function, "__qualname__", "")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if file is None or getattr(module, name, None) is not function:
        return ""  # a lambda, a closure, an object, or a function in a notebook
    assert module is not None
    alone = not module.__package__ or module.__name__.startswith(NAMESPACE)
    return f"{Path(file).resolve()}:{name}" if alone else f"{module.__name__}:{name}"


class _Placed(NamedTuple):
    """A function that another process imports from ``place``, its import path."""

    place: str


def pack_function(name: str, function: object) -> object:
    """Convert a function to a form that other processes can receive; see :func:`unpack_function`.

    Raises:
        ConfigError: if there is no such form.
    """
    if function is None or isinstance(function, str):
        return function
    if place := import_path_of(function):
        return _Placed(place)
    try:
        pickle.dumps(function)
    except Exception as error:  # pickling an object can raise anything
        qualname = getattr(function, "__qualname__", repr(function))
        raise ConfigError(
            f"{name} ({qualname}) cannot be sent to other processes. Define it at the top level of "
            'a file, or use mode="in_process".'
        ) from error
    return function


def unpack_function(function: object) -> Any:
    """Restore a function that was converted by :func:`pack_function`."""
    return load_function(function.place) if isinstance(function, _Placed) else function


def collect_source_code(*functions: object) -> str:
    """Return the source code of functions and classes, where it is available.

    This includes the functions, classes and objects of the same module that they use.
    """
    sources: dict[int, str] = {}
    left = list(functions)
    while left:
        thing = left.pop()
        if thing is None or id(thing) in sources:
            continue
        sources[id(thing)] = _source_code(thing)
        left += _used_objects(thing)
    return "\n".join(sorted(filter(None, sources.values())))


def _source_code(thing: object) -> str:
    try:
        return inspect.getsource(thing)  # type: ignore[arg-type]
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):  # no file, or not a Python file
        return repr(thing) if isinstance(thing, str) or is_dataclass(thing) else ""


def _used_objects(thing: object) -> Iterator[object]:
    """Yield the functions, classes and dataclass instances that a function uses from its module."""
    members = [*vars(thing).values()] if inspect.isclass(thing) else [thing]
    for member in members:
        function = inspect.unwrap(member) if callable(member) else member
        if not inspect.isfunction(function):
            continue
        for name in _global_names(function.__code__):
            used = function.__globals__.get(name)
            own = getattr(used, "__module__", None) == function.__module__
            if (own and (inspect.isfunction(used) or inspect.isclass(used))) or (
                is_dataclass(used) and not inspect.isclass(used)
            ):
                yield used


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
