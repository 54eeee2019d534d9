"""``coevo tasks list``: tasks of benchmarks and runs, and rejected drafts."""

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
        typer.Option(help="For a benchmark: tasks of this split.", show_default="train"),
    ] = None,
    subset: Annotated[str | None, typer.Option(help="For a benchmark: name of a subset.")] = None,
    evolved: Annotated[
        bool,
        typer.Option(
            "--evolved",
            help="Only evolved tasks, with lineage; for a benchmark, from all runs here.",
        ),
    ] = False,
    rejected: Annotated[
        bool,
        typer.Option("--rejected", help="For a run: rejected drafts, with the reasons."),
    ] = False,
    search: Annotated[
        str | None, typer.Option(metavar="WORDS", help="Only tasks that contain all these words.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="List at most N.")] = None,
    as_json: AsJson = False,
) -> None:
    """List tasks. The word `list` may be left out.

    The command installs nothing.

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
        raise ConfigError(
            "--rejected lists the drafts of a run. Name a run, and leave --evolved out."
        )
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
    """Print tasks as a table with one line per task.

    Args:
        rows: the tasks to print.
        total: number of tasks, including those not printed.
        noun: word for the rows.
    """
    columns = [key for key in rows[0] if key not in _LONG_COLUMNS] if rows else ["name"]
    table = Table(box=None, expand=True)
    for column in columns:
        longest = max((len(str(row[column])) for row in rows), default=0)
        flexible = column in (
            "instruction",
            "reason",
        )  # all other columns are short, and users copy from them
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
    say_aside(f"{counted}; --json prints the full tasks, `coevo tasks show ID` a single one.")
