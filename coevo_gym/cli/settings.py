"""``coevo config``: print settings."""

from __future__ import annotations

from typing import Annotated

import typer

from coevo_gym.cli.completion import completing, presets
from coevo_gym.cli.output import AsJson, as_text, print_json, say_wrapped

Source = Annotated[
    str,
    typer.Argument(
        metavar="PRESET_OR_TOML",
        help="Name of a preset (see `coevo train --list`), or a .toml file.",
        autocompletion=completing(presets),
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
]

IgnoreMemory = Annotated[
    bool,
    typer.Option(
        "--ignore-memory",
        help="Start even if the language model cannot fit the GPU (without one: the memory) of "
        "this machine.",
    ),
]

app = typer.Typer(help="Print settings.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Look at settings."""


@app.command("show")
def show(source: Source, sets: Sets = None, as_json: AsJson = False) -> None:
    """Print all settings, each with the origin of its value unless that is the default.

    For example: coevo config show quickstart --set seed=1
    """
    from coevo_gym.runs.config import load_config

    rows = load_config(source, sets=sets or ()).rows()
    if as_json:
        print_json([{"key": key, "value": value, "origin": origin} for key, value, origin in rows])
        return
    for key, value, origin in rows:
        default = origin == "default"
        text = f"{key} = {as_text(value) or '(empty)'}" + ("" if default else f"  ({origin})")
        say_wrapped(text, style="dim" if default else "")
