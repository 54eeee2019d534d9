"""User-defined code that settings refer to by its import path.

An import path is ``file.py:object``, relative to the current folder, or ``module:object``, with a
module that is installed or in the current folder.

    >>> is_import_path("learners/mine.py:Mine"), is_import_path("pg")
    (True, False)
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.registry import suggest

NAMESPACE = "coevo_gym_plugins."
"""Prefix of the names of modules that are imported from a file."""
_NOT_CODE = frozenset({"__pycache__", ".git", ".venv", "node_modules"})
"""Folders that are not part of a package's source."""
_LARGE_BYTES = 10_000_000
_imported: dict[str, ModuleType] = {}
"""The modules that are imported from files, by their names."""


def is_import_path(value: object) -> bool:
    """Return True if a setting's value is an import path rather than a name."""
    return isinstance(value, str) and ":" in value


def origin_of(path: str) -> str:
    """Return the file or module part of an import path."""
    return path.rpartition(":")[0]


def is_python_file(origin: str) -> bool:
    """Return True for a Python file, False for a module."""
    return origin.endswith(".py")


def absolute_import_path(folder: Path, path: str) -> str:
    """Return an import path with its file made absolute. A relative file is in ``folder``."""
    origin, _, name = path.rpartition(":")
    return (
        f"{(folder / Path(origin).expanduser()).resolve()}:{name}"
        if is_python_file(origin)
        else path
    )


def load_own_object(path: str) -> Any:
    """Import and return the object that an import path names.

    Raises:
        ConfigError: if it does not exist or cannot be imported.
    """
    origin, _, name = path.rpartition(":")
    module = (
        import_file(Path(origin).resolve()) if is_python_file(origin) else _import_module(origin)
    )
    if not hasattr(module, name):
        known = [known for known, thing in vars(module).items() if _is_defined_in(module, thing)]
        hint = suggest(name, known) if known else "It defines no class and no function."
        raise ConfigError(f"{origin} does not define {name!r}. {hint}")
    return getattr(module, name)


def import_file(path: Path) -> ModuleType:
    """Import a file as a module in the namespace ``coevo_gym_plugins``.

    The file's folder is added to the import path. An unchanged file is imported once. The module's
    name depends on the file's path and content, so that files with the same name do not mix.

    Raises:
        ConfigError: if the file does not exist or cannot be imported; the message has the line.
    """
    try:
        content = file_hash(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be imported: {error.strerror}.") from error
    place = hashlib.sha256(bytes(path)).hexdigest()[:8]
    name = f"{NAMESPACE}{path.stem}_{place}_{content}"
    if name in _imported:
        return _imported[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    _add_to_import_path(path.parent)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's file may raise anything
        del sys.modules[name]
        raise ConfigError(
            f"{path}{_describe_line(error, path)} cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    _imported[name] = module
    return module


def file_hash(path: Path) -> str:
    """Return a hash of a file's content.

    Raises:
        OSError: if the file cannot be read.
    """
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def origin_hash(origin: str) -> str:
    """Return a hash of the content of a file or module, or "" if it does not exist."""
    try:
        if is_python_file(origin):
            return file_hash(Path(origin))
        spec = find_spec(origin)
        return file_hash(Path(spec.origin)) if spec is not None and spec.origin else ""
    except (OSError, ImportError, ValueError):
        return ""


def package_of(thing: object) -> str:
    """Return the name of the top-level package that defines an object's class or a function."""
    module = getattr(thing, "__module__", None) or type(thing).__module__
    return str(module).partition(".")[0]


@cache
def package_hash(name: str) -> str:
    """Return a hash of all files of an installed package or module, or "" if it has no files."""
    try:
        spec = find_spec(name)
        folders = [] if spec is None else [*map(Path, spec.submodule_search_locations or ())]
        if folders:
            files = [file for folder in folders for file in files_below(folder)]
            return hash_files(files, folders[0])
        return "" if spec is None or not spec.origin else file_hash(Path(spec.origin))
    except (OSError, ImportError, ValueError):  # such as code that exists only in a notebook
        return ""


def files_below(folder: Path) -> list[Path]:
    """Return all source files below a folder, also behind links, sorted."""
    files: list[Path] = []
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(set(folders) - _NOT_CODE)
        files += [Path(root) / name for name in names if not name.endswith((".pyc", ".swp"))]
    return sorted(files)


def hash_files(files: Iterable[Path], root: Path) -> str:
    """Return a hash of the names, relative to ``root``, and the contents of files.

    A large file counts with its size and the time of its last change instead.
    """
    state = hashlib.sha256()
    for file in files:
        stat = file.stat()
        large = stat.st_size > _LARGE_BYTES
        content = f"{stat.st_size} {stat.st_mtime_ns}" if large else file_hash(file)
        state.update(f"{os.path.relpath(file, root)} {content}\n".encode())
    return state.hexdigest()[:16]


def _import_module(name: str) -> ModuleType:
    _add_to_import_path(Path.cwd())
    try:
        return import_module(name)
    except Exception as error:  # the user's module may raise anything
        raise ConfigError(
            f"The module {name!r} cannot be imported: {type(error).__name__}: {error}. Install it, "
            "or specify a file in the form file.py:object."
        ) from error


def _add_to_import_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _is_defined_in(module: ModuleType, thing: object) -> bool:
    return callable(thing) and getattr(thing, "__module__", None) == module.__name__


def _describe_line(error: Exception, path: Path) -> str:
    """Return the error's location in the file as ", line N", or "" if it is unknown."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""
