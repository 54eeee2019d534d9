"""Functions that load user-defined methods from a folder."""

from __future__ import annotations

import hashlib
import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.registry import METHODS
from coevo_gym.methods.method import MethodSpec

_known: dict[str, tuple[Path, dict[str, str]]] = {}
"""The folder whose methods are registered, with its file hashes."""


def load_folder(folder: str | Path) -> None:
    """Register the methods from a folder's ``.py`` files under the names passed to ``@method``.

    The files are read again if any file has changed. Files whose names begin with ``_`` are not
    loaded, but other files can import them because the folder is on the import path.

    Raises:
        ConfigError: if the folder does not exist, one of its files cannot be imported or does not
            define a method, or a name is already used.
    """
    now = (Path(folder), folder_hashes(folder))
    if _known.get("methods") == now:
        return
    owners: dict[str, Path] = {}
    for path in method_files(folder):
        for spec in _specs(path):
            if spec.name in owners:
                raise ConfigError(
                    f"plugins.methods: {owners[spec.name]} and {path} both define the method "
                    f"{spec.name!r}."
                )
            owners[spec.name] = path
            METHODS.add(spec.name, spec)
    _known["methods"] = now


def method_files(folder: str | Path) -> list[Path]:
    """Return the files in a folder that define methods.

    Raises:
        ConfigError: if the folder or such a file does not exist.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ConfigError(f"plugins.methods: {root} is not a folder.")
    files = [path for path in sorted(root.glob("*.py")) if not path.name.startswith("_")]
    if not files:
        raise ConfigError(f"plugins.methods: {root} does not contain any .py files.")
    return files


def folder_hashes(folder: str | Path) -> dict[str, str]:
    """Map the name of each file that defines methods to a hash of its content."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in method_files(folder)
    }


def _specs(path: Path) -> list[MethodSpec]:
    specs = (thing for thing in vars(_import(path)).values() if isinstance(thing, MethodSpec))
    known = METHODS.built_in
    additions = [one for one in specs if one.name not in known or METHODS.load(one.name) is not one]
    if not additions:
        raise ConfigError(
            f"plugins.methods: {path} does not define a method. Decorate a function with "
            '@method("name"), or prefix the file name with _ if the file is only meant to be '
            "imported."
        )
    return additions


def _import(path: Path) -> ModuleType:
    """Import a file as a module in the namespace ``coevo_gym_plugins``."""
    name = f"coevo_gym_plugins.{path.stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's file may raise anything
        del sys.modules[name]
        raise ConfigError(
            f"plugins.methods: {path}{_line(error, path)} cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    return module


def _line(error: Exception, path: Path) -> str:
    """Return the error's location in the file as ", line N", or "" if it is unknown."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""
