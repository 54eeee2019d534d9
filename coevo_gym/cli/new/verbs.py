"""``coevo new``: write a working template for a component of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coevo_gym.cli.new.writing import write_module, write_package
from coevo_gym.cli.output import say
from coevo_gym.core.benchmark import find_spec
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.registry import METHODS

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name in lower-case letters and digits, such as my_shop."),
]
Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder to write to.")]

_METHODS = Path("methods")

app = typer.Typer(
    help="Write a working template for a component of your own.", no_args_is_help=True
)


@app.command()
def benchmark(
    name: Name,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="An empty or new folder; coevo-NAME by default."),
    ] = None,
) -> None:
    """Write a package with a benchmark, which works in every command once it is installed.

    For example: coevo new benchmark kitchen
    """
    if find_spec(name) is not None:
        raise ConfigError(f"There is a benchmark {name!r} already. Choose another name.")
    target = folder or Path(f"coevo-{name.replace('_', '-')}")
    for file in write_package("benchmark", name, target):
        say(f"  {file}")
    place = target if target.is_absolute() else f"./{target}"
    say(f"Install it: pip install -e '{place}[dev]'")
    say(f"Test it:    pytest {target}")
    say(f"Use it:     coevo play {name}")


@app.command()
def gate(name: Name, folder: Folder = Path()) -> None:
    """Write a file with a gate: a check that every new task must pass.

    For example: coevo new gate short_words
    """
    file = write_module("gate", name, folder)
    say(f"  {file}")
    say(f"Check that it keeps its contract: python {file}")


@app.command()
def method(name: Name, folder: Folder = _METHODS) -> None:
    """Write a file with a method: its parts, and the settings that an arm may change.

    For example: coevo new method patient
    """
    _write_method("method", name, folder)


@app.command()
def curriculum(name: Name, folder: Folder = _METHODS) -> None:
    """Write a file with a curriculum, which weights tasks, and a method that uses it.

    For example: coevo new curriculum rare_first
    """
    _write_method("curriculum", name, folder)


def _write_method(kind: str, name: str, folder: Path) -> None:
    if name in METHODS.names():
        raise ConfigError(f"There is a method {name!r} already. Choose another name.")
    file = write_module(kind, name, folder)
    say(f"  {file}")
    say(f"Check that it keeps its contract: python {file}")
    say(f"Train with it: coevo train quickstart --set plugins.methods={folder} --set arms={name}")
