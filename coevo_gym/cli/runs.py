"""``coevo runs``: list and delete runs, tables and evaluations."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from coevo_gym.cli.output import (
    AsJson,
    errors,
    print_json,
    print_table,
    say,
    say_to_stderr,
)
from coevo_gym.cli.sources import eval_names, make_completer, run_names
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.waiting import format_duration
from coevo_gym.runs.table import format_part
from coevo_gym.store.folder import RUNS, RunFolder, replace_non_finite
from coevo_gym.store.progress_file import WorkProgress

if TYPE_CHECKING:
    from coevo_gym.runs.folders.listing import TableOfRuns
    from coevo_gym.view.model.evals import EvalRow
    from coevo_gym.view.model.runs import RunRow

app = typer.Typer(
    help="List or delete runs and evaluations.",
    no_args_is_help=True,
)
Yes = Annotated[bool, typer.Option("--yes", help="Delete without asking.")]
_STYLES = {"running": "cyan", "finished": "green", "stopped": "yellow", "damaged": "red"}


@app.command("list")
def print_runs(
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="List the cells of this table.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List runs, tables and evaluations with their state, progress and size.

    A run's state is running, finished, stopped (`coevo resume` continues it) or damaged. Mixed
    groups: share of the training groups with both successes and failures. Tokens with gradient:
    number of sampled tokens that updates learned from, and their share of all sampled tokens.

    For example:

      coevo runs list

      coevo runs list rbc_noisy

      coevo runs list --json
    """
    from coevo_gym.runs.folders import listing
    from coevo_gym.view.collection import RunCollection
    from coevo_gym.view.library import Library
    from coevo_gym.view.model.evals import eval_rows_for_terminal
    from coevo_gym.view.model.runs import run_rows_for_terminal

    if table is not None:
        collection = RunCollection(Library([str(listing.find_table(table))]))
        rows, tables, evaluations = (
            run_rows_for_terminal(collection),
            [],
            eval_rows_for_terminal(collection),
        )
    else:
        alone = [RunFolder(RUNS / name) for name in RunFolder.names()]
        rows = run_rows_for_terminal(RunCollection(Library(alone))) if alone else []
        tables = listing.list_tables()
        evaluations = eval_rows_for_terminal(RunCollection(Library()))
    if as_json:
        print_json(
            {
                "runs": [_row_to_json(row) for row in rows],
                "tables": [_row_to_json(row) for row in tables],
                "evals": [_row_to_json(row) for row in evaluations],
            }
        )
        return
    if not (rows or tables or evaluations):
        say("runs/ and evals/ are empty. Start a run: coevo train quickstart")
        return
    for section in (_run_section(rows), _table_section(tables), _eval_section(evaluations)):
        if section.row_count:
            print_table(section)
    for row in (*rows, *evaluations):
        if problem := row.problem or (row.on_disk and row.on_disk.problem):
            say(f"{row.name}: {problem}")


@app.command("rm")
def remove_runs(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="Names or folders of runs, tables or evaluations.",
            autocompletion=make_completer(run_names, eval_names),
        ),
    ],
    yes: Yes = False,
) -> None:
    """Delete runs, tables or evaluations, along with everything in their folders.

    The command refuses to delete folders that a process is writing to, and asks for confirmation
    before it deletes anything. Deletion cannot be undone.

    For example:

      coevo runs rm quickstart

      coevo runs rm evals/tested controls --yes
    """
    from coevo_gym.runs.folders.removing import cells_using, delete_removable, find_removable

    items = list({item.path.resolve(): item for item in map(find_removable, names)}.values())
    for item in items:
        cells = f", {len(item.folders)} cells" if item.kind == "table" else ""
        say(f"{item.path}: {item.kind}{cells}, {_format_size(item.size)}")
        for cell in cells_using(item):
            say(f"  {cell} is a link to it, and would have to be run again.")
    _confirm_deletion(f"Delete {'it' if len(items) == 1 else f'all {len(items)}'}?", yes)
    for item in items:
        delete_removable(item)
    say(f"Deleted: {_format_size(sum(item.size for item in items))}.")


@app.command("gc")
def free_space(
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the files that would be deleted, without deleting them."
        ),
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete old checkpoints of finished runs, and files left behind by killed processes.

    The command skips runs in progress, and keeps everything needed to resume, evaluate, report,
    compare or view a run. The command lists the files and asks for confirmation first.

    For example:

      coevo runs gc --dry-run

      coevo runs gc --yes
    """
    from coevo_gym.runs.folders.removing import delete_freeable, find_freeable

    items = find_freeable()
    if as_json:
        if not dry_run and not yes:
            raise ConfigError(
                "With --json, the command cannot ask for confirmation. Add --dry-run or --yes."
            )
        freed = 0 if dry_run else delete_freeable(items)
        rows = [{"path": str(i.path), "why": i.why, "size": i.size} for i in items]
        print_json({"items": rows, "size": sum(item.size for item in items), "freed": freed})
        return
    if not items:
        say("There is nothing to delete.")
        return
    table = Table(Column("path", overflow="fold"), Column("size", justify="right"), "why", box=None)
    for item in items:
        table.add_row(escape(str(item.path)), _format_size(item.size), item.why)
    print_table(table)
    say(f"Total: {_format_size(sum(item.size for item in items))}.")
    if dry_run:
        return
    _confirm_deletion("Delete it?", yes)
    say(f"Freed: {_format_size(delete_freeable(items))}.")


def _confirm_deletion(question: str, yes: bool) -> None:
    """Ask the user for confirmation, unless ``--yes`` was passed."""
    if yes:
        return
    if not (sys.stdin.isatty() and errors.is_terminal):
        raise ConfigError("Nothing was deleted: confirmation requires a terminal. Pass --yes.")
    if not typer.confirm(question, err=True):
        say_to_stderr("Nothing was deleted.")
        raise typer.Abort


def _row_to_json(row: RunRow | TableOfRuns | EvalRow) -> dict[str, Any]:
    fields = row.model_dump(mode="json", exclude={"on_disk"})
    on_disk = row.on_disk.model_dump(mode="json") if row.on_disk else {}
    problem = fields.get("problem") or on_disk["problem"]
    return dict(replace_non_finite({**fields, **on_disk, "problem": problem}))


def _run_section(rows: list[RunRow]) -> Table:
    columns = ("benchmark", "preset", "steps per arm", "mixed groups", "tokens with gradient")
    table = _make_section("run", *columns)
    for row in rows:
        saved = row.on_disk.steps if row.on_disk else {}
        steps = ", ".join(f"{arm} {saved.get(arm, 0)}" for arm in row.arms)
        mixed = "" if row.mixed_groups is None else f"{row.mixed_groups:.1%}"
        learned = format_part(row.gradient_tokens, row.rollout_tokens)
        _add_row(table, row, row.benchmark, row.preset, steps, mixed, learned)
    return table


def _table_section(rows: list[TableOfRuns]) -> Table:
    table = _make_section("table", "cells")
    for row in rows:
        _add_row(table, row, ", ".join(f"{n} {state}" for state, n in row.cells.items()))
    return table


def _eval_section(rows: list[EvalRow]) -> Table:
    table = _make_section("evaluation", "of", "split", "episodes", "success")
    for row in rows:
        success = "" if row.success is None else f"{row.success:.1%}"
        of = f"{row.policy} of {row.source}" if row.source else ""
        _add_row(table, row, of, row.split, f"{row.done}/{row.total}", success)
    return table


def _make_section(kind: str, *columns: str) -> Table:
    return Table(
        Column(kind, overflow="fold"), Column("state", no_wrap=True),
        *(Column(name, overflow="fold") for name in columns),
        Column("size", justify="right"), Column("changed (UTC)", overflow="fold"), box=None,
    )  # fmt: skip


def _add_row(table: Table, row: RunRow | TableOfRuns | EvalRow, *cells: str) -> None:
    """Add a table row for a run or evaluation; ``cells`` go between the state and size columns."""
    assert row.on_disk is not None
    state = _format_state(row.on_disk.state, row.on_disk.progress)
    changed = row.on_disk.changed[:16].replace("T", " ")
    table.add_row(
        escape(row.name), state, *map(escape, cells), _format_size(row.on_disk.size), changed
    )


def _format_state(state: str, progress: WorkProgress | None) -> str:
    """Format the state of a run or evaluation in colour, with the time left while it is running."""
    text = state
    if state == "running" and progress is not None and progress.state == "running":
        how_far = f" {progress.done / progress.total:.0%}" if progress.total else ""
        left = progress.all_left_s if progress.all_left_s is not None else progress.left_s
        later = f", {format_duration(left)} left" if left is not None else ""
        text = f"{state}: {progress.phase}{how_far}{later}"
    return f"[{_STYLES[state]}]{escape(text)}[/]"


def _format_size(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
