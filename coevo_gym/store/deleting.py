"""Deletion of runs, evaluations and their files, which never goes through a symbolic link."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from coevo_gym.core.errors import ConfigError


def delete(path: Path) -> None:
    """Delete a file, a link, or a folder with its contents; links are removed, not followed.

    Raises:
        OSError: if it cannot be deleted.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def through_link(path: Path, *roots: Path) -> Path | None:
    """Return where a path leads if it is a symbolic link, or has one on its way; else None.

    Args:
        path: the path to check.
        *roots: folders that may themselves be links, for example to a larger disk.
    """
    named = Path(os.path.abspath(path))
    expected = named
    for root in roots:
        base = Path(os.path.abspath(root))
        if named.is_relative_to(base):
            expected = root.resolve() / named.relative_to(base)
    found = path.resolve()
    return None if found == expected else found


def check_deletable(path: Path, *roots: Path) -> None:
    """Refuse to delete anything through a symbolic link.

    Args:
        path: the folder to delete or to empty.
        *roots: folders that may themselves be links, as in :func:`through_link`.

    Raises:
        ConfigError: if the path is a link, or has one on its way.
    """
    found = through_link(path, *roots)
    if found is not None:
        raise ConfigError(
            f"{path} is a link, or lies behind one: it leads to {found}. Nothing was deleted. "
            "Name that folder itself, or remove the link."
        )


def written_by_us(file: Path, *keys: str) -> bool:
    """Return whether a JSON file holds an object with these keys.

    A name such as ``config.json`` alone does not show that a folder is ours to delete.
    """
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and all(key in value for key in keys)
