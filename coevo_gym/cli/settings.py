"""The ``coevo config`` command, and options and run plans shared by several commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.markup import escape
from rich.table import Table

from coevo_gym.cli.output import (
    AsJson,
    as_text,
    ask_to_permit,
    print_json,
    print_table,
    say_to_stderr,
    say_wrapped,
)
from coevo_gym.cli.sources import card_names, make_completer, preset_names
from coevo_gym.core.arithmetic import request_arithmetic
from coevo_gym.core.waiting import forbid_setup

if TYPE_CHECKING:
    from coevo_gym.runs.config import RunConfig


Source = Annotated[
    str,
    typer.Argument(
        metavar="PRESET_OR_TOML",
        help="Name of a preset (see `coevo train --list`), or a .toml file.",
        autocompletion=make_completer(preset_names),
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
]
Verify = Annotated[
    str,
    typer.Option(
        metavar="FILE.py:FUNCTION",
        help="For a JSONL file of rows: the function verify(row, answer) that judges answers.",
        show_default=False,
    ),
]
Tools = Annotated[
    list[str] | None,
    typer.Option(
        "--tool",
        metavar="FILE.py:NAME",
        help="For rows: a function that the agent can call, or a class whose public methods it "
        "can call. May be repeated.",
    ),
]

Card = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="With --dry-run: GPU to plan for, such as h100 or rtx4090 (default: this machine's "
        "device).",
        autocompletion=make_completer(card_names),
    ),
]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes",
        help="Accept the estimated cost of paid models, and allow settings from a file or a run to "
        "run Python code and to send your API keys.",
    ),
]
IgnoreMemory = Annotated[
    bool,
    typer.Option(
        "--ignore-memory",
        help="Start even if the language model does not fit in GPU memory (or in RAM, if this "
        "machine has no GPU).",
    ),
]


class PrintedPlan(NamedTuple):
    """The plan for a run, as text and as JSON.

    Attributes:
        rows: pairs of a quantity and its value, as text.
        numbers: the same quantities as a JSON object.
    """

    rows: tuple[tuple[str, str], ...]
    numbers: dict[str, Any]


def describe_run_plan(
    config: RunConfig, card: str | None = None, processes: int = 1
) -> PrintedPlan:
    """Return the plan for a run, including the models that it may query.

    Without a card, the plan is for this machine's device; with several processes, for one per
    process.

    Raises:
        ConfigError: if the GPU is unknown.
    """
    from coevo_gym.runs.planning.cost import estimate_costs
    from coevo_gym.runs.planning.device import device_to_plan_for
    from coevo_gym.runs.planning.plan import plan_rows, plan_run

    device = replace(device_to_plan_for(config.policy, card), count=processes)
    with forbid_setup():
        planned, asked = plan_run(config, device), estimate_costs(config)
    lines = [row for estimate in asked for row in estimate.to_rows()]
    prices = [{**one.model_dump(mode="json"), "usd": one.cost.usd or None} for one in asked]
    return PrintedPlan((*plan_rows(config, planned), *lines), {**asdict(planned), "asked": prices})


def print_plan(rows: Sequence[tuple[str, str]], title: str | None = None) -> None:
    """Print a plan as a two-column table."""
    table = Table("quantity", "value", box=None, title=title, title_justify="left")
    for quantity, value in rows:
        table.add_row(quantity, escape(value))
    print_table(table)


def prepare_run(config: RunConfig, *, yes: bool, ignore_memory: bool, processes: int = 1) -> None:
    """Prepare this process for a run, after asking the user for the permissions that it needs.

    Raises:
        ConfigError: if the user must be asked, but there is no terminal, or if the language model
            does not fit in memory.
    """
    from coevo_gym.runs.config import approve_settings
    from coevo_gym.runs.planning.device import rank_of_process
    from coevo_gym.runs.planning.memory import require_memory

    approve_settings(config, None if yes else ask_to_permit)
    request_arithmetic(config.arithmetic)  # before PyTorch is imported
    if not ignore_memory and rank_of_process() is None:  # ranks are started after this check
        require_memory(config, processes)


app = typer.Typer(help="Print the settings of a preset or .toml file.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Print the settings of a preset or .toml file."""


@app.command("show")
def show(source: Source, sets: Sets = None, as_json: AsJson = False) -> None:
    """Print all settings, and the origin of each value that is not the default.

    The settings of the run are followed by a block for each arm, with the settings that the arm
    changes and those of its method.

    For example: coevo config show quickstart --set seed=1
    """
    from coevo_gym.runs.config import load_config, unapproved_code
    from coevo_gym.runs.planning.plan import arm_specific_rows

    resolved = load_config(source, sets=sets or ())
    blocks = {"": resolved.list_settings(), **arm_specific_rows(resolved.config)}
    for origin in unapproved_code(resolved.config):
        kind = "methods" if origin == resolved.config.plugins.methods else "learners or losses"
        say_to_stderr(f"The {kind} in {origin} are not loaded.")
    if as_json:
        print_json(
            [
                {"arm": arm, "key": key, "value": value, "origin": origin}
                for arm, rows in blocks.items()
                for key, value, origin in rows
            ]
        )
        return
    for arm, rows in blocks.items():
        if arm:
            say_wrapped(f"arm {arm} uses these settings in place of those above:")
        for key, value, origin in rows:
            default = origin == "default"
            text = f"{key} = {as_text(value) or '(empty)'}" + ("" if default else f"  ({origin})")
            say_wrapped(text, style="dim" if default else "")
