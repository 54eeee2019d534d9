"""Deletion of runs, evaluations and their files, without following symbolic links."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from coevo_gym.core.errors import ConfigError


def delete(path: Path) -> None:
    """Delete a file, a link, or a folder with its contents; links are removed, not followed.

    Raises:
        OSError: if the path cannot be deleted.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def through_link(path: Path, *roots: Path) -> Path | None:
    """Return the target of a path that is or contains a symbolic link; else None.

    Args:
        path: path to check.
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
    """Check that a folder can be deleted without going through a symbolic link.

    Args:
        path: folder to delete or to empty.
        *roots: folders that may themselves be links, as in :func:`through_link`.

    Raises:
        ConfigError: if the path is or contains a link.
    """
    found = through_link(path, *roots)
    if found is not None:
        raise ConfigError(
            f"{path} is a symbolic link, or is reached through one: it points to {found}. Nothing "
            "was deleted. Use the path of that folder itself, or remove the link."
        )


def written_by_us(file: Path, *keys: str) -> bool:
    """Return True if a JSON file contains an object with these keys.

    A name such as ``config.json`` alone does not prove that coevo_gym created a folder.
    """
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and all(key in value for key in keys)
