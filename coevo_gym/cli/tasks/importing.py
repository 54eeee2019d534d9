"""``coevo tasks import``: validate tasks of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from coevo_gym.cli.completion import completing, runs
from coevo_gym.cli.output import FAILED, AsJson, busy, cell, print_json, print_table, say_aside
from coevo_gym.core.errors import ConfigError
from coevo_gym.run.tasks.importing import ImportedLine, Importer, add_to_run
from coevo_gym.store.folder import RunFolder, write_atomic


def import_tasks(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="JSON Lines file with one task per line.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the accepted tasks to this file, which samplers can read."
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            help="Add the accepted tasks to this run's pools.", autocompletion=completing(runs)
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Validate tasks from a file with the gates, and keep those that pass.

    A line is a task as `coevo tasks export` writes it, a draft (a task without a verifier), or a
    proposal: turns, actions, confidence, description, and the name of a training task as its
    source. The gates execute the actions of each line, and the verifier of an accepted task is
    made from their effects. Bad lines are reported by number; the other lines are still checked.
    Validation and test tasks are refused.

    Without --out and --run, the command only checks. With --run, the tasks join every arm with its
    next round, also while the run is training. The exit code is 1 if a line was not accepted.

    For example:

      coevo tasks import mine.jsonl

      coevo tasks import mine.jsonl --out proven.jsonl

      coevo tasks import mine.jsonl --run quickstart
    """
    if out is not None and run is not None:
        raise ConfigError("Pass --out or --run, not both.")
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise ConfigError(f"Cannot write to {out}. Name a file in an existing folder.")
    folder = RunFolder.of(run) if run is not None else None
    judged: list[ImportedLine] = []
    try:
        with busy("trying out the tasks"):
            for one in Importer(folder).judge(file):
                judged.append(one)
    finally:  # tasks accepted before a Ctrl-C are kept
        accepted = [one for one in judged if one.task is not None]
        if out is not None and judged:
            lines = (one.task.to_json().encode() + b"\n" for one in accepted if one.task)
            write_atomic(out, b"".join(lines))
        if folder is not None:
            add_to_run(folder, accepted)
    if as_json:
        print_json([one.to_json() for one in judged])
    else:
        _print(judged, out, folder)
    if len(accepted) < len(judged):
        raise typer.Exit(FAILED)


def _print(judged: list[ImportedLine], out: Path | None, folder: RunFolder | None) -> None:
    table = Table("line", "verdict", "why", box=None)
    for one in judged:
        row = one.to_json()
        gate = f"rejected by {row['gate']}" if row["gate"] else "refused"
        verdict, why = (f"accepted as {row['name']}", "") if one.task else (gate, row["reason"])
        table.add_row(str(one.line), verdict, cell(why))
    if judged:
        print_table(table)
    n = sum(one.task is not None for one in judged)
    say_aside(f"{n} of {len(judged)} accepted.")
    if out is not None and judged:
        say_aside(f"Tasks: {out}")
    if folder is not None and n:
        over = folder.summary.is_file()
        when = "it is finished, so nobody practises them; an export has them"
        say_aside(f"{n} for {folder.path.name}: " + (when if over else "they join with its rounds"))
