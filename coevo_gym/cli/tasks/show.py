"""``coevo tasks show``: one task and its history."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from coevo_gym.cli.completion import completing, runs
from coevo_gym.cli.output import AsJson, print_json, say
from coevo_gym.cli.tasks.tell import tell
from coevo_gym.core.task import Task
from coevo_gym.core.waiting import only_looking
from coevo_gym.run.tasks.story import Story
from coevo_gym.store.folder import RunFolder


def show_task(
    task: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Name of a task; in a run also the start of the id of a task or draft.",
        ),
    ],
    run: Annotated[
        str | None,
        typer.Option(help="The run in which it evolved.", autocompletion=completing(runs)),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Print observations, actions and proposals in full.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show one task: its instruction, and the reference that solves it.

    For a task that evolved in a run, its history comes first: the signal and its numbers, the
    context, the work of a model (summary, walks, proposal), the verdict of each gate, and the
    parent tasks. Rejected drafts are shown in the same way; `coevo tasks RUN --rejected` lists
    them. With --json, the output includes world and verifier.

    For example:

      coevo tasks show webshop/builtin/synthetic/7

      coevo tasks show webshop/evolved/0123456789ab --run quickstart

      coevo tasks show 0123 --run quickstart --full
    """
    from coevo_gym.core.benchmark import find_any_task
    from coevo_gym.run.tasks.story import find_story

    with only_looking():
        found = find_any_task(task) if run is None else find_story(RunFolder.of(run), task)
    if as_json:
        print_json(_as_json(found))
    elif isinstance(found, Task):
        _print_task(found)
    else:
        tell(found, full=full)


def _as_json(found: Task | Story) -> dict[str, Any]:
    """Return the JSON of a task or rejected draft, with its history as ``history``."""
    task = found if isinstance(found, Task) else found.task
    whole: dict[str, Any] = json.loads(task.to_json()) if task else {}
    if isinstance(found, Story):
        draft = found.to_json()["verdict"]["draft"]
        whole = {**(whole or draft), "history": found.to_json()}
    return whole


def _print_task(task: Task) -> None:
    for what in ("name", "id", "benchmark", "split", "subset", "scenario", "origin"):
        if value := str(getattr(task, what)):
            say(f"{what:<12} {value}")
    for parent in task.parents:
        say(f"{'parent':<12} {parent}")
    for what, value in task.provenance.items():
        say(f"{what:<12} {value}")
    say(f"\n{task.instruction}\n")
    for number, action in enumerate(task.solution, start=1):
        say(f"{number:4}  {action}")
