"""``coevo tasks``: the tasks of benchmarks and runs."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from coevo_gym.cli.output import AsJson, cell, print_json, print_table, say, say_aside
from coevo_gym.cli.sources import BenchmarkOrRun, find_source
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.waiting import only_looking
from coevo_gym.store.folder import RunFolder


class _ListByDefault(TyperGroup):
    """A group of verbs of which ``list`` may be left out: ``coevo tasks webshop``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_ListByDefault, no_args_is_help=True)


@app.callback()
def _group() -> None:
    """List the tasks of a benchmark or of a run, or show one.

    For example:

      coevo tasks webshop --split val

      coevo tasks quickstart --evolved --json

      coevo tasks show webshop/builtin/synthetic/7
    """


@app.command("list")
def list_tasks(
    source: BenchmarkOrRun,
    split: Annotated[
        str | None,
        typer.Option(help="Of a benchmark: train, val or test.", show_default="train"),
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
    search: Annotated[
        str | None, typer.Option(metavar="WORDS", help="Only tasks that hold all these words.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
    as_json: AsJson = False,
) -> None:
    """List tasks; the word `list` may be left out.

    Nothing is installed or made for that.

    For example:

      coevo tasks webshop --split val --search "machine washable" --limit 20

      coevo tasks quickstart --evolved --json
    """
    from coevo_gym.run.listing import evolved_rows, matching, native_rows, run_rows

    found = find_source(source)
    if (split or subset) and (evolved or isinstance(found, RunFolder)):
        raise ConfigError("--split and --subset are for a benchmark's own tasks.")
    with only_looking():
        if isinstance(found, RunFolder):
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
        print_tasks(shown, len(rows))


@app.command("show")
def show_task(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Name or id of a task.")],
    run: Annotated[
        str | None, typer.Option(metavar="RUN", help="The run in which it evolved.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show one task: what is asked for, and the reference that solves it.

    JSON has its world and its verifier, too.

    For example:

      coevo tasks show webshop/builtin/synthetic/7

      coevo tasks show webshop/evolved/0123456789ab --run quickstart
    """
    from coevo_gym.core.benchmark import find_any_task
    from coevo_gym.run.listing import find_run_task

    with only_looking():
        found = find_any_task(task) if run is None else find_run_task(RunFolder.of(run), task)
    if as_json:
        print_json(json.loads(found.to_json()))
        return
    for what in ("name", "id", "benchmark", "split", "subset", "scenario", "origin"):
        if value := str(getattr(found, what)):
            say(f"{what:<12} {value}")
    for parent in found.parents:
        say(f"{'parent':<12} {parent}")
    for what, value in found.provenance.items():
        say(f"{what:<12} {value}")
    say(f"\n{found.instruction}\n")
    for number, action in enumerate(found.solution, start=1):
        say(f"{number:4}  {action}")


_LONG_COLUMNS = ("id", "actions", "parents", "split")


def print_tasks(rows: list[dict[str, Any]], total: int) -> None:
    """Print tasks as a table with a line for each.

    Args:
        rows: the tasks to print.
        total: how many there are.
    """
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
    if rows:
        print_table(table)
    counted = f"{total} tasks" if total == len(rows) else f"{len(rows)} of {total} tasks"
    say_aside(f"{counted}; --json prints all of each, `coevo tasks show NAME` one of them.")
