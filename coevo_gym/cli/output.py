"""Consoles, tables, JSON output, spinners and exit codes of commands."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape, render
from rich.table import Column, Table

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evaluation_mark import WHY_WITHHELD
from coevo_gym.core.spaces import HIDDEN, make_visible
from coevo_gym.core.waiting import send_progress_to
from coevo_gym.runs.display import PLAIN_LINES, SafeConsole, can_redraw
from coevo_gym.runs.progress_reports import ProgressFile, ProgressSink

if TYPE_CHECKING:
    from coevo_gym.runs.planning.cost import CostEstimate
    from coevo_gym.store.approvals import Permission

DONE, FAILED, USAGE, MISSING, INTERRUPTED = 0, 1, 2, 3, 130


console = SafeConsole()
errors = SafeConsole(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print the output as JSON.")]

REVEAL_HELP = (
    "Show the grader's report on held-out tasks, too. This is off by default, because "
    f"{WHY_WITHHELD}."
)
"""Help text of the options --reveal."""
MAX_TYPES = 12
"""Maximum number of task types in a table; a kind with more types is not shown as a table."""

_PIPE_WIDTH = 200


def print_json(value: Any) -> None:
    """Print a value as JSON, escaping non-printable characters."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    typer.echo(HIDDEN.sub(lambda match: _escape_character(match[0]), text))


def _escape_character(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def print_table(table: Table) -> None:
    """Print a table at the width of the terminal, or without wrapping if output is piped."""
    _table_console().print(table)


def print_table_unwrapped(table: Table, *, keys: Collection[str] = ()) -> None:
    """Print a table without wrapping its cells.

    A table wider than the terminal is split by columns into several tables, one below the other.
    Each repeats the key columns, so that its rows can be identified. The first column is always a
    key column.
    """
    printer = _table_console()
    for part in _split_columns(table, keys, printer.width):
        printer.print(part)


def is_piped() -> bool:
    """Return True if output is not a terminal and the user has not set a width."""
    return not can_redraw(console) and "COLUMNS" not in os.environ


def _table_console() -> Console:
    return SafeConsole(width=_PIPE_WIDTH) if is_piped() else console


def _split_columns(table: Table, keys: Collection[str], width: int) -> Iterator[Table]:
    if 1 + sum(map(_column_width, table.columns)) <= width:
        yield table
        return
    first, *rest = table.columns
    repeated = [first, *(column for column in rest if column.header in keys)]
    room = width - 1 - sum(map(_column_width, repeated))
    part, left = [*repeated], room
    for column in (column for column in rest if column.header not in keys):
        if len(part) > len(repeated) and _column_width(column) > left:
            yield _select_columns(table, part)
            part, left = [*repeated], room
        part.append(column)
        left -= _column_width(column)
    yield _select_columns(table, part)


def _column_width(column: Column) -> int:
    """Return the width of a column, including its border and padding."""
    texts = [column.header, *column.cells]
    return 3 + max(cell_len(render(make_visible(str(text))).plain) for text in texts)


def _select_columns(table: Table, columns: Sequence[Column]) -> Table:
    part = Table(*(column.copy() for column in columns), title=table.title)
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        part.add_row(*cells, style=table.rows[number].style)
    return part


def as_text(value: Any) -> str:
    """Format a value as human-readable text."""
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    return "none" if value is None else str(value)


def format_cell(value: Any) -> str:
    """Format a value for a table cell, and escape its markup."""
    return escape(as_text(value))


def say(text: str) -> None:
    """Print a line without wrapping, so that paths are not broken."""
    console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


def say_wrapped(text: str, *, hang: int = 2, style: str = "") -> None:
    """Print a word-wrapped paragraph, or a single line if output is piped.

    Args:
        text: the paragraph, whose leading spaces are kept.
        hang: indentation of all lines but the first.
        style: Rich style of the text.
    """
    width = max(1, len(text)) if is_piped() else console.width
    lines = textwrap.wrap(
        text,
        width,
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def say_block(name: str, facts: Sequence[tuple[str, str]], *, style: str = "") -> None:
    """Print a name, followed by an indented list of labelled values.

    A label may be "".
    """
    console.print(name, style="bold", markup=False, highlight=False, soft_wrap=True)
    longest = max(len(label) for label, _ in facts)
    for label, text in facts:
        indent = 2 + (longest + 2) * bool(label)
        say_wrapped(
            f"  {label:<{longest}}  {text}" if label else f"  {text}", hang=indent, style=style
        )


def say_to_stderr(text: str) -> None:
    """Print a line for the user to stderr, separate from the command's output."""
    errors.print(text, style="dim", markup=False, emoji=False, highlight=False, soft_wrap=True)


def ask_to_accept_cost(asked: Sequence[CostEstimate]) -> bool:
    """Ask the user to accept the cost of paid models. Return False if there is no terminal."""
    from coevo_gym.runs.planning.cost import describe_costs

    paid = [estimate for estimate in asked if estimate.paid]
    if not paid or not (sys.stdin.isatty() and errors.is_terminal):
        return False
    say_to_stderr(describe_costs(paid))
    return typer.confirm("Continue?", err=True, abort=True)


def ask_to_permit(missing: Sequence[Permission]) -> None:
    """Ask the user for permissions that settings from a file or a run need.

    Raises:
        ConfigError: if there is no terminal to ask on.
    """
    from coevo_gym.store.approvals import describe_permissions, require_approval

    if not (sys.stdin.isatty() and errors.is_terminal):
        require_approval(*missing)
    say_to_stderr(describe_permissions(missing))
    typer.confirm("Permit this?", err=True, abort=True)


def require_writable(file: Path | None) -> None:
    """Check that a file can be created, before starting the work that produces it.

    Raises:
        ConfigError: if ``file`` is a folder, or its folder does not exist.
    """
    if file is not None and (file.is_dir() or not file.parent.is_dir()):
        raise ConfigError(f"Cannot write to {file}. Specify a file in an existing folder.")


@contextmanager
def show_activity(what: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner on a terminal, or print plain lines elsewhere, during a long operation.

    Yields:
        A function that reports the current activity.
    """
    if not can_redraw(errors):
        say_to_stderr(f"{what} ...")
        yield lambda now: say_to_stderr(f"{now} ...")
        return
    with errors.status(f"{what} ...") as status:
        yield lambda now: status.update(f"{now} ...")


@contextmanager
def show_progress(what: str) -> Iterator[None]:
    """Show progress reports in a spinner on a terminal, or as plain lines elsewhere."""
    with show_activity(what) as tell, send_progress_to(_Following(_Spinning(tell))):
        yield


@contextmanager
def show_installation(what: str, folder: Path) -> Iterator[Callable[[str], None]]:
    """Show a spinner and write ``progress.json`` during an installation.

    Yields:
        A function that reports the current activity.
    """
    with (
        show_activity(f"installing {what}") as tell,
        ProgressFile(_Spinning(tell), folder, "install", what) as reporter,
        send_progress_to(_Following(reporter)),
    ):
        reporter.begin_phase(f"installing {what}", 0)
        yield lambda now: reporter.begin_phase(now, 0)


class _Following:
    """A log handler that reports progress messages as phases of the command."""

    def __init__(self, progress: ProgressSink) -> None:
        self._progress, self._what = progress, ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if what != self._what:
            self._what = what
            self._progress.begin_phase(what, total, done)
        self._progress.update(done)


class _Spinning(ProgressSink):
    """A progress display: a spinner on a terminal, otherwise about ten lines per phase."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._name, self._total, self._shown = tell, "", 0, 0

    def begin_phase(self, name: str, total: int, done: int = 0, *, similar: int = 0) -> None:
        """Report the start of a phase."""
        if self._name:  # the context manager has started its own phase
            self._tell(name)
        self._name, self._total, self._shown = name, total, 0

    def update(self, done: int, **facts: str) -> None:
        """Update the progress of the phase."""
        portion = done * PLAIN_LINES // max(1, self._total)
        if portion > self._shown:
            self._shown = portion
            self._tell(f"{self._name}: {done} of {self._total}")

    def say(self, text: str) -> None:
        """Print a line."""
        self._tell(text)
