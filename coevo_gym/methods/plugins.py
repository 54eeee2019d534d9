"""Functions that register user-defined methods, and list a project's methods and learners."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.own_code import file_hash, import_file
from coevo_gym.core.registry import METHODS
from coevo_gym.methods.method import MethodSpec

METHODS_FOLDER, LEARNERS_FOLDER = "methods", "learners"
"""Folders of a project in which ``coevo new`` writes methods and learners."""

_known: dict[str, tuple[Path, dict[str, str]]] = {}
"""The folder whose methods are registered, with its file hashes."""


def register_methods(folder: str | Path) -> None:
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
        for spec in _load_specs(path):
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
    return {path.name: file_hash(path) for path in method_files(folder)}


def _load_specs(path: Path) -> list[MethodSpec]:
    try:
        module = import_file(path)
    except ConfigError as error:
        raise ConfigError(f"plugins.methods: {error}") from error
    specs = (thing for thing in vars(module).values() if isinstance(thing, MethodSpec))
    known = METHODS.built_in
    additions = [one for one in specs if one.name not in known or METHODS.load(one.name) is not one]
    if not additions:
        raise ConfigError(
            f"plugins.methods: {path} does not define a method. Decorate a function with "
            '@method("name"), or prefix the file name with _ if the file is only meant to be '
            "imported."
        )
    return additions


class OwnComponent(NamedTuple):
    """A method or learner defined in a project's files.

    Attributes:
        kind: ``method`` or ``learner``.
        name: a method's name, or a learner's import path.
        about: the first line of its docstring.
        sets: settings that select it.
    """

    kind: Literal["method", "learner"]
    name: str
    about: str
    sets: tuple[str, ...]


def own_components(project: Path) -> Iterator[OwnComponent]:
    """Yield the methods and learners in a project's own folders, without running their code.

    A file that is not valid Python is skipped; loading it reports the error.
    """
    for path in sorted((project / METHODS_FOLDER).glob("*.py")):
        for name, about in _methods_in(_parse(path)):
            sets = (f"plugins.methods={METHODS_FOLDER}", f"arms={name}")
            yield OwnComponent("method", name, about, sets)
    for path in sorted((project / LEARNERS_FOLDER).glob("*.py")):
        for name, about in _learners_in(_parse(path)):
            where = f"{path.relative_to(project)}:{name}"
            yield OwnComponent("learner", where, about, (f"learner={where}",))


def _parse(path: Path) -> list[ast.stmt]:
    try:
        return ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []


def _methods_in(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield the name and description of each method that ``@method`` or ``preset`` creates."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if texts := _string_arguments(decorator, "method"):
                    yield texts[0], _summary_line(node)
        elif (
            isinstance(node, ast.Assign)
            and len(texts := _string_arguments(node.value, "preset")) > 1
        ):
            yield texts[0], texts[1]


def _learners_in(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield the name and description of each class that has an attribute ``settings``."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            targets = [t for one in node.body if isinstance(one, ast.Assign) for t in one.targets]
            targets += [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
            if any(isinstance(t, ast.Name) and t.id == "settings" for t in targets):
                yield node.name, _summary_line(node)


def _string_arguments(node: ast.expr, function: str) -> list[str]:
    """Return the string literals among the positional arguments of a call to ``function``."""
    if not isinstance(node, ast.Call):
        return []
    called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
    if called != function and not (isinstance(called, ast.Name) and called.id == function):
        return []
    values = [one.value for one in node.args if isinstance(one, ast.Constant)]
    return [value for value in values if isinstance(value, str)]


def _summary_line(node: ast.FunctionDef | ast.ClassDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]
