"""Plans of runs, as ``--dry-run`` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.markup import escape
from rich.table import Table

from coevo_gym.cli.output import print_table
from coevo_gym.core.waiting import only_looking

if TYPE_CHECKING:
    from coevo_gym.runs.config import RunConfig


class PrintedPlan(NamedTuple):
    """The plan of a run.

    Attributes:
        rows: pairs of a quantity and its value, in words.
        numbers: the same as a JSON object.
    """

    rows: tuple[tuple[str, str], ...]
    numbers: dict[str, Any]


def plan_of(config: RunConfig, card: str | None = None) -> PrintedPlan:
    """Return the plan of a run, and of the models that it may ask.

    Args:
        config: the settings of the run.
        card: the GPU to plan for; None for the device of this machine.

    Raises:
        ConfigError: if the GPU is unknown.
    """
    from coevo_gym.runs.evolving.cost import estimates
    from coevo_gym.runs.plan import plan, rows
    from coevo_gym.runs.planning.device import device_to_plan_for

    device = device_to_plan_for(config.policy, card)
    with only_looking():
        planned, asked = plan(config, device), estimates(config)
    told = [row for estimate in asked for row in estimate.rows()]
    prices = [{**one.model_dump(mode="json"), "usd": one.cost.usd or None} for one in asked]
    return PrintedPlan((*rows(config, planned), *told), {**asdict(planned), "asked": prices})


def print_rows(rows: Sequence[tuple[str, str]], title: str | None = None) -> None:
    """Print a plan as a table of two columns."""
    table = Table("what", "how much", box=None, title=title, title_justify="left")
    for what, how_much in rows:
        table.add_row(what, escape(how_much))
    print_table(table)
