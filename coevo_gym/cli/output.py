"""What verbs print with: consoles, tables, JSON, and the exit codes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coevo_gym.run.progress import RunProgress

DONE, FAILED, USAGE, MISSING, INTERRUPTED = 0, 1, 2, 3, 130

console = Console()
errors = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

_PIPE_WIDTH = 200


def print_json(value: Any) -> None:
    """Print a value as JSON for programs."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal; a pipe has room for whole lines."""
    piped = not console.is_terminal and "COLUMNS" not in os.environ
    (Console(width=_PIPE_WIDTH) if piped else console).print(table)


def cell(value: Any) -> str:
    """A value as the text of a cell."""
    if isinstance(value, (list, tuple)):
        return escape(", ".join(str(item) for item in value))
    return "none" if value is None else escape(str(value))


class _ToProgress(logging.Handler):
    """Shows warnings above the live line."""

    def __init__(self, progress: RunProgress) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self._progress.say(f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def logging_to(progress: RunProgress) -> Iterator[None]:
    """A scope in which warnings are shown above the progress line."""
    handler, logger = _ToProgress(progress), logging.getLogger("coevo_gym")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
