"""``coevo tasks export``: write tasks to files for sharing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coevo_gym.cli.output import say, say_aside
from coevo_gym.cli.sources import BenchmarkOrRun, find_source
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.waiting import only_looking
from coevo_gym.store.folder import RunFolder


def export_tasks(
    source: BenchmarkOrRun,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to write to.", show_default="NAME-tasks"),
    ] = None,
    arm: Annotated[str | None, typer.Option(help="For a run: only this arm's tasks.")] = None,
    subset: Annotated[str | None, typer.Option(help="For a benchmark: name of a subset.")] = None,
    with_solutions: Annotated[
        bool, typer.Option("--with-solutions", help="Add reference solutions to the table.")
    ] = False,
    no_parquet: Annotated[
        bool, typer.Option("--no-parquet", help="Do not write the table, which needs pyarrow.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export.")
    ] = False,
) -> None:
    """Write the training tasks of a run or a benchmark to files for sharing.

    tasks.jsonl holds the full tasks with world, verifier and reference; samplers and `coevo tasks
    import` read it. tasks.parquet is a table for sharing, with the round, signal and gates of each
    task. It has no verifiers, and solutions only with --with-solutions. croissant.json describes
    both files (JSON-LD, Croissant 1.0).

    For a run, the command exports the tasks that its rounds found and those that a person
    released. It never exports validation and test tasks. It prints the conditions that the
    authors of the tasks set for sharing them, and adds them to the description. Read these before
    you publish anything.

    For example:

      coevo tasks export quickstart

      coevo tasks export quickstart --arm coevolve --out evolved --with-solutions

      coevo tasks export webshop --no-parquet
    """
    from coevo_gym.core.benchmark import get_benchmark
    from coevo_gym.core.task import Split
    from coevo_gym.export.bundle import write_bundle
    from coevo_gym.export.rows import of_benchmark, of_run

    found = find_source(source)
    with only_looking():
        if isinstance(found, RunFolder):
            if subset is not None:
                raise ConfigError("--subset is for a benchmark's own tasks.")
            name, tasks = found.path.name, of_run(found, arm)
        else:
            if arm is not None:
                raise ConfigError("--arm is for the tasks of a run.")
            native = get_benchmark(found.name).tasks(Split.TRAIN, subset)
            name, tasks = found.name, of_benchmark(native)
    written = write_bundle(
        out or Path(f"{name}-tasks"),
        name,
        tasks,
        parquet=not no_parquet,
        with_solutions=with_solutions,
        overwrite=overwrite,
    )
    for file in written.files:
        say(str(file))
    say_aside(f"{len(tasks)} tasks. tasks.jsonl holds solutions and verifiers, too.")
    for benchmark, terms in written.terms.items():
        say_aside(f"Before you share these tasks ({benchmark}): {terms}")
