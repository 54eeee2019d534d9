"""Links from a cell of a table to the identical cell of another table."""

from __future__ import annotations

import os
from pathlib import Path


def link_cell(path: Path, target: Path) -> bool:
    """Make the folder of a cell a link to an identical one. Return False if it exists already.

    The link is relative, so ``runs/`` or ``evals/`` may be moved as a whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not any(path.iterdir()):
        path.rmdir()
    try:
        path.symlink_to(os.path.relpath(target.resolve(), path.parent.resolve()))
    except OSError:  # it exists, or the file system has no links
        return False
    return True


def remove_dead_link(path: Path) -> None:
    """Remove the link of a cell whose target was deleted, so that the cell is run."""
    if path.is_symlink() and not path.exists():
        path.unlink()


def linked_folder(path: Path) -> str:
    """Return the folder that a cell's link points to, or "" for a folder of its own.

    The path is relative to the current folder if possible.
    """
    if not path.is_symlink():
        return ""
    target, here = path.resolve(), Path.cwd().resolve()
    return str(target.relative_to(here) if target.is_relative_to(here) else target)
