"""``coevo config``: a look at settings."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from coevo_gym.cli.output import AsJson, cell, print_json, print_table

Source = Annotated[
    str, typer.Argument(metavar="PRESET_OR_TOML", help="Name of a preset, or a .toml file.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
]

app = typer.Typer(help="Look at settings.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Look at settings."""


@app.command("show")
def show(source: Source, sets: Sets = None, as_json: AsJson = False) -> None:
    """Print all settings with the origin of each value.

    For example: coevo config show quickstart --set seed=1
    """
    from coevo_gym.config import load_config

    rows = load_config(source, sets=sets or ()).rows()
    if as_json:
        print_json([{"key": key, "value": value, "origin": origin} for key, value, origin in rows])
        return
    longest = max(len(key) for key, _, _ in rows)
    table = Table(
        Column("setting", no_wrap=True, min_width=longest),  # there to be copied
        Column("value", overflow="fold"),
        Column("from", overflow="fold"),
        box=None,
    )
    for key, value, origin in rows:
        table.add_row(key, cell(value), escape(origin), style="" if origin != "default" else "dim")
    print_table(table)
