"""``coevo tasks``: the tasks of benchmarks and runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from coevo_gym.cli.output import AsJson, cell, console, print_json, print_table
from coevo_gym.cli.sources import BenchmarkOrRun, find_source
from coevo_gym.run.folder import RunFolder


class _ListByDefault(TyperGroup):
    """A group of verbs of which ``list`` may be left out: ``coevo tasks webshop``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_ListByDefault, no_args_is_help=True)


@app.callback()
def _group() -> None:
    """List a benchmark's tasks, or the tasks of a run with how they came to be.

    For example:

      coevo tasks webshop --split val

      coevo tasks quickstart --evolved --json
    """


@app.command("list")
def list_tasks(
    source: BenchmarkOrRun,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "train",
    subset: Annotated[str | None, typer.Option(help="The benchmark's name for a part.")] = None,
    evolved: Annotated[
        bool, typer.Option("--evolved", help="Of a run: only tasks that evolved, with lineage.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List tasks; `list` itself may be left out.

    For example:

      coevo tasks webshop --split val

      coevo tasks quickstart --evolved --json
    """
    from coevo_gym.run.listing import native_rows, run_rows

    found = find_source(source)
    if isinstance(found, RunFolder):
        rows = run_rows(found, evolved=evolved)
    else:
        rows = native_rows(found.name, split, subset)
    if as_json:
        print_json(rows)
    else:
        print_tasks(rows)


_LONG_COLUMNS = ("id", "actions", "parents", "split")


def print_tasks(rows: list[dict[str, Any]]) -> None:
    """Print tasks as a table with a line for each."""
    columns = [key for key in rows[0] if key not in _LONG_COLUMNS] if rows else ["name"]
    table = Table(box=None, expand=True)
    for column in columns:
        longest = max((len(str(row[column])) for row in rows), default=0)
        flexible = column == "instruction"  # all else is short, and there to be copied
        table.add_column(
            column,
            no_wrap=True,
            ratio=1 if flexible else None,
            min_width=None if flexible else longest,
        )
    for row in rows:
        table.add_row(*(cell(row[column]) for column in columns))
    print_table(table)
    console.print(f"{len(rows)} tasks; --json prints all of each.", style="dim")
