"""``coevo tasks`` and its verbs."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from coevo_gym.cli.tasks.export import export_tasks
from coevo_gym.cli.tasks.importing import import_tasks
from coevo_gym.cli.tasks.listing import list_tasks
from coevo_gym.cli.tasks.review import review
from coevo_gym.cli.tasks.show import show_task


class _ListByDefault(TyperGroup):
    """Command group with ``list`` as the default verb: ``coevo tasks webshop``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_ListByDefault, no_args_is_help=True)
app.command("list")(list_tasks)
app.command("show")(show_task)
app.command("review")(review)
app.command("import")(import_tasks)
app.command("export")(export_tasks)


@app.callback()
def _group() -> None:
    """List tasks, show the history of one, review held ones, import and export.

    For example:

      coevo tasks webshop --split val

      coevo tasks quickstart --evolved --json

      coevo tasks show 0123456789ab --run quickstart

      coevo tasks review quickstart

      coevo tasks import mine.jsonl --out proven.jsonl

      coevo tasks export quickstart
    """
