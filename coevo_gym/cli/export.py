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
            help="Name or folder of a run, an evaluation, or a table of either.",
            autocompletion=make_completer(run_names, eval_names),
        ),
    ],
    format: Annotated[
        EpisodeFormat,
        typer.Option(
            "--format",
            "-f",
            help="messages: chats in OpenAI's format, for fine-tuning; atif: one file per episode, "
            "for viewers; jsonl or parquet: whole episodes, for scripts.",
        ),
    ] = EpisodeFormat.MESSAGES,
    success: Annotated[
        bool | None,
        typer.Option(
            "--success/--failure",
            help="Export only solved, or only unsolved episodes.",
            show_default="both",
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK", help="Export only this task's episodes, by its name or id. Repeatable."
        ),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARM", help="Export only the episodes of this arm or policy. Repeatable."
        ),
    ] = None,
    split: Annotated[
        list[Split] | None,
        typer.Option(
            metavar="train|val|test|held_out",
            help="Export the episodes of this split's tasks. Repeatable. Rows of held-out tasks "
            "are marked.",
            show_default="train",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to create.", show_default="NAME-FORMAT"),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export in this folder.")
    ] = False,
) -> None:
    """Export stored episodes as chats, ATIF trajectories, JSON Lines or Parquet.

    The command writes a folder with one file per split, and a data card (README.md) that explains
    each column. Rows contain the exact messages that a language model was sent, and its answers;
    jsonl, parquet and atif also the token ids and log-probabilities, if they are stored.

    By default, only episodes of training tasks are exported, so that nothing trains on held-out
    ones by accident. To export those, name their split with --split: each row is then marked, and
    coevo_gym refuses it as training data.

    For example:

      coevo export quickstart --success

      coevo export quickstart --arm coevolve --format parquet

      coevo export evals/gpt-on-webshop --split val --failure --format atif

      coevo export baselines --split val --split test --format jsonl --out episodes
    """
    from coevo_gym.view.data.episodes import EpisodeFilter
    from coevo_gym.view.data.write import CARD, export_episodes
    from coevo_gym.view.numbers import plural

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
    rows = sum(result.rows.values())
    say_to_stderr(f"{plural(total, 'episode')} ({solved:,} solved), {plural(rows, 'row')}.")
    if rebuilt := total - result.exact:
        say_to_stderr(
            f"{rebuilt:,} of {total:,} have no stored messages of a language model, so their "
            "messages are made from observations and actions."
        )
    if held_out := [one for one in result.episodes if one != Split.TRAIN]:
        say_to_stderr(
            f"Episodes of {' and '.join(held_out)} tasks: do not train on them. Each row is marked."
        )
