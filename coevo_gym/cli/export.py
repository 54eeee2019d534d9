"""``coevo export``: write stored episodes to files that other programs read."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from coevo_gym.cli.output import say, say_to_stderr, show_activity
from coevo_gym.cli.sources import eval_names, make_completer, run_names
from coevo_gym.core.task import Split


class EpisodeFormat(StrEnum):
    """Formats of exported episodes."""

    MESSAGES = "messages"
    ATIF = "atif"
    JSONL = "jsonl"
    PARQUET = "parquet"


def export(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name or folder of a run, an evaluation or a table of runs.",
            autocompletion=make_completer(run_names, eval_names),
        ),
    ],
    format: Annotated[
        EpisodeFormat,
        typer.Option(
            "--format",
            "-f",
            help="messages: chats in OpenAI's format, for TRL; atif: one file per trajectory; "
            "jsonl or parquet: whole episodes.",
        ),
    ] = EpisodeFormat.MESSAGES,
    success: Annotated[
        bool | None,
        typer.Option(
            "--success/--failure",
            help="Only solved, or only unsolved episodes.",
            show_default="both",
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK", help="Name or id of a task. Repeat for several."),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(metavar="ARM", help="Arm or evaluated policy. Repeat for several."),
    ] = None,
    split: Annotated[
        list[Split] | None,
        typer.Option(
            metavar="train|val|test|held_out",
            help="Split of the tasks. Repeat for several. Rows of held-out tasks are marked.",
            show_default="train",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to create.", show_default="NAME-FORMAT"),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export.")
    ] = False,
) -> None:
    """Export stored episodes as chats, ATIF trajectories, JSON Lines or Parquet.

    The command writes a folder with a file per split and a data card, README.md. Rows contain the
    exact messages that a language model was sent, its answers, token ids and log-probabilities, as
    far as they are stored.

    Only episodes of training tasks are exported by default. Episodes of held-out tasks need
    --split. Each of their rows is then marked, and coevo_gym refuses them as training data.

    For example:

      coevo export quickstart --success

      coevo export quickstart --arm coevolve --format parquet

      coevo export evals/gpt-on-webshop --split val --failure --format atif

      coevo export rbc_webshop --format jsonl --out episodes
    """
    from coevo_gym.view.data.episodes import EpisodeFilter
    from coevo_gym.view.data.write import CARD, export_episodes

    target = out or Path(f"{Path(name).resolve().name}-{format}")
    wanted = EpisodeFilter(
        success=success,
        tasks=tuple(task or ()),
        arms=tuple(arm or ()),
        splits=tuple(map(str, split or (Split.TRAIN,))),
    )
    with show_activity("exporting") as tell:
        result = export_episodes(name, target, format.value, wanted, overwrite=overwrite, tell=tell)
    for file in (*result.files, CARD):
        say(str(target / file))
    total, solved = sum(result.episodes.values()), sum(result.solved.values())
    say_to_stderr(f"{total:,} episodes ({solved:,} solved), {sum(result.rows.values()):,} rows.")
    if rebuilt := total - result.exact:
        say_to_stderr(
            f"{rebuilt:,} of the episodes have no stored messages of a language model: their "
            "messages are made from observations and actions."
        )
    if held_out := [one for one in result.episodes if one != Split.TRAIN]:
        say_to_stderr(
            f"Episodes of {' and '.join(held_out)} tasks: do not train on them. Each row is marked."
        )
