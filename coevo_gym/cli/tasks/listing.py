"""``coevo tasks list``: the tasks of benchmarks and runs, and the drafts that became none."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from coevo_gym.cli.output import AsJson, cell, print_json, print_table, say_aside
from coevo_gym.cli.sources import BenchmarkOrRun, NativeSplit, find_source
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.waiting import only_looking
from coevo_gym.store.folder import RunFolder


def list_tasks(
    source: BenchmarkOrRun,
    split: Annotated[
        NativeSplit | None,
        typer.Option(help="Of a benchmark: tasks of this split.", show_default="train"),
    ] = None,
    subset: Annotated[
        str | None, typer.Option(help="Of a benchmark: its own name for a part.")
    ] = None,
    evolved: Annotated[
        bool,
        typer.Option(
            "--evolved",
            help="Only tasks that evolved, with lineage; of a benchmark, in all runs here.",
        ),
    ] = False,
    rejected: Annotated[
        bool,
        typer.Option("--rejected", help="Of a run: the drafts that became no task, and why."),
    ] = False,
    search: Annotated[
        str | None, typer.Option(metavar="WORDS", help="Only tasks that hold all these words.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="List at most N.")] = None,
    as_json: AsJson = False,
) -> None:
    """List tasks; the word `list` may be left out.

    Nothing is installed or made for that.

    For example:

      coevo tasks webshop --split val --search "machine washable" --limit 20

      coevo tasks quickstart --evolved --json

      coevo tasks quickstart --rejected --search near_duplicate
    """
    from coevo_gym.run.listing import (
        evolved_rows,
        matching,
        native_rows,
        rejected_rows,
        run_rows,
    )

    found = find_source(source)
    if (split or subset) and (evolved or isinstance(found, RunFolder)):
        raise ConfigError("--split and --subset are for a benchmark's own tasks.")
    if rejected and (evolved or not isinstance(found, RunFolder)):
        raise ConfigError("--rejected is for the drafts of a run, and goes without --evolved.")
    with only_looking():
        if rejected and isinstance(found, RunFolder):
            rows = rejected_rows(found)
        elif isinstance(found, RunFolder):
            rows = run_rows(found, evolved=evolved)
        elif evolved:
            rows = evolved_rows(found.name)
        else:
            rows = native_rows(found.name, split or "train", subset)
    rows = matching(rows, search) if search is not None else rows
    shown = rows[:limit]
    if as_json:
        print_json(shown)
    else:
        print_tasks(shown, len(rows), noun="drafts" if rejected else "tasks")


_LONG_COLUMNS = ("id", "actions", "parents", "split")


def print_tasks(rows: list[dict[str, Any]], total: int, *, noun: str = "tasks") -> None:
    """Print tasks as a table with a line for each.

    Args:
        rows: the tasks to print.
        total: how many there are.
        noun: what they are.
    """
    columns = [key for key in rows[0] if key not in _LONG_COLUMNS] if rows else ["name"]
    table = Table(box=None, expand=True)
    for column in columns:
        longest = max((len(str(row[column])) for row in rows), default=0)
        flexible = column in ("instruction", "reason")  # all else is short, and there to be copied
        table.add_column(
            column,
            no_wrap=True,
            ratio=1 if flexible else None,
            min_width=None if flexible else longest,
        )
    for row in rows:
        table.add_row(*(cell(row[column]) for column in columns))
    if rows:
        print_table(table)
    counted = f"{total} {noun}" if total == len(rows) else f"{len(rows)} of {total} {noun}"
    say_aside(f"{counted}; --json prints all of each, `coevo tasks show ID` one of them.")
