"""Templates for user-defined components, and the code that instantiates one.

A template is working code under a placeholder name. A copy of it replaces the placeholder in every
form: ``newbench`` as a module, ``Newbench`` as part of a class, and ``coevo-newbench`` as a
distribution.
"""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from coevo_gym.core.errors import ConfigError

_FOLDER = Path(__file__).parent / "skeletons"
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def write_package(kind: str, name: str, folder: Path) -> list[Path]:
    """Write a folder of files.

    Args:
        kind: ``benchmark``.
        name: name of the new component.
        folder: an empty or new folder.

    Returns:
        The files.

    Raises:
        ConfigError: if the name is invalid, or the folder is not empty.
    """
    _check(kind, name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty. Choose another folder.")
    source = _FOLDER / kind
    files = [path for path in sorted(source.rglob("*")) if path.is_file() and _is_ours(path)]
    return [
        _write(path, folder / _renamed(str(path.relative_to(source)), kind, name), kind, name)
        for path in files
    ]


def write_module(kind: str, name: str, folder: Path) -> Path:
    """Write one file, named after its component.

    Args:
        kind: the template.
        name: name of the new component.
        folder: folder to write to.

    Raises:
        ConfigError: if the name is invalid, or the file exists.
    """
    _check(kind, name)
    target = folder / f"{name}.py"
    if target.exists():
        raise ConfigError(f"{target} exists already. Choose another name, or another folder.")
    return _write(_FOLDER / f"{kind}.py", target, kind, name)


def _check(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a {kind}: it has small letters and digits, with an "
            "underscore between two words, and begins with a letter."
        )


def _is_ours(path: Path) -> bool:
    return "__pycache__" not in path.parts


def _write(source: Path, target: Path, kind: str, name: str) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    text = _renamed(source.read_text(encoding="utf-8"), kind, name)
    target.write_text(text.replace("FOLDER", target.parent.name or "."), encoding="utf-8")
    return target


def _renamed(text: str, kind: str, name: str) -> str:
    """Replace the placeholder name of a text in all its forms."""
    old = _OLD[kind]
    camel = "".join(word.capitalize() for word in name.split("_"))
    text = text.replace(f"coevo-{old}", f"coevo-{name.replace('_', '-')}")
    return text.replace(old, name).replace(old.capitalize(), camel)


_OLD = {
    "benchmark": "newbench",
    "curriculum": "newcurriculum",
    "gate": "newgate",
    "method": "newmethod",
}
"""Placeholder names in the templates."""
