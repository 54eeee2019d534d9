"""``coevo tasks export``: tasks as files for others."""

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
    arm: Annotated[str | None, typer.Option(help="Of a run: only this arm's tasks.")] = None,
    subset: Annotated[
        str | None, typer.Option(help="Of a benchmark: its own name for a part.")
    ] = None,
    with_solutions: Annotated[
        bool, typer.Option("--with-solutions", help="Put reference solutions into the table, too.")
    ] = False,
    no_parquet: Annotated[
        bool, typer.Option("--no-parquet", help="Write no table, which takes pyarrow.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export.")
    ] = False,
) -> None:
    """Write the training tasks of a run or a benchmark as files for others.

    tasks.jsonl has each task whole, with world, verifier and reference: samplers and `coevo tasks
    import` read it. tasks.parquet is a table to look at and to share, with the round, the signal
    and the gates of each, but no verifier, and no solution unless --with-solutions asks for it.
    croissant.json describes both (JSON-LD, Croissant 1.0).

    Of a run these are the tasks that its rounds found, and those that people let in. Validation
    and test tasks are never exported. What their authors ask of whoever passes tasks on is
    printed and written into the description: read it before you publish anything.

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
        say_aside(f"Before you pass them on, {benchmark}: {terms}")
