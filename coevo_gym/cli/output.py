"""What verbs print with: consoles, tables, JSON, and the exit codes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape, render
from rich.table import Column, Table

from coevo_gym.core import waiting

DONE, FAILED, USAGE, MISSING, INTERRUPTED = 0, 1, 2, 3, 130

console = Console()
errors = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

MOST_TYPES = 12
"""Types of tasks that a table lists: of a kind with more of them there is none."""

_PIPE_WIDTH = 200


def print_json(value: Any) -> None:
    """Print a value as JSON for programs."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal; a pipe has room for whole lines."""
    _printer().print(table)


def print_numbers(table: Table) -> None:
    """Print a table whose cells are never broken; its first column names the rows.

    Where it is wider than the terminal, its columns stand in several tables, one below the other,
    each with the names.
    """
    printer = _printer()
    for part in _parts(table, printer.width):
        printer.print(part)


def _printer() -> Console:
    piped = not console.is_terminal and "COLUMNS" not in os.environ
    return Console(width=_PIPE_WIDTH) if piped else console


def _parts(table: Table, width: int) -> Iterator[Table]:
    names, *others = table.columns
    part, left = [names], width - 1 - _width(names)
    for column in others:
        if len(part) > 1 and _width(column) > left:
            yield _with_columns(table, part)
            part, left = [names], width - 1 - _width(names)
        part.append(column)
        left -= _width(column)
    yield _with_columns(table, part)


def _width(column: Column) -> int:
    """How wide a column is with its line and the blanks around it."""
    texts = [column.header, *column.cells]
    return 3 + max(cell_len(render(str(text)).plain) for text in texts)


def _with_columns(table: Table, columns: Sequence[Column]) -> Table:
    part = Table(*(column.copy() for column in columns), title=table.title)
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        part.add_row(*cells, style=table.rows[number].style)
    return part


def cell(value: Any) -> str:
    """A value as the text of a cell."""
    if isinstance(value, (list, tuple)):
        return escape(", ".join(str(item) for item in value))
    return "none" if value is None else escape(str(value))


class _Teller(logging.Handler):
    """Passes on warnings, and what is told to a person who waits."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "" if record.name == waiting.logger.name else f"{record.levelname.lower()}: "
        self._say(f"{prefix}{record.getMessage()}")


@contextmanager
def telling(say: Callable[[str], None]) -> Iterator[None]:
    """A scope in which ``say`` is given what the package logs for people, and nobody else is."""
    logger = logging.getLogger("coevo_gym")
    before, logger.handlers = logger.handlers, [_Teller(say)]
    try:
        yield
    finally:
        logger.handlers = before


def say(text: str) -> None:
    """Print a line as it is; no path in it is broken."""
    console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


def say_aside(text: str) -> None:
    """Print a line for people beside the output proper."""
    errors.print(text, style="dim", markup=False, emoji=False, highlight=False, soft_wrap=True)


@contextmanager
def busy(what: str) -> Iterator[Callable[[str], None]]:
    """A scope that takes long: a spinner on a terminal, lines elsewhere.

    Yields:
        A function to say what is being done now.
    """
    if not errors.is_terminal:
        say_aside(f"{what} ...")
        yield lambda now: say_aside(f"{now} ...")
        return
    with errors.status(f"{what} ...") as status:
        yield lambda now: status.update(f"{now} ...")
