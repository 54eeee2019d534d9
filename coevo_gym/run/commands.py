"""The verbs of the ``coevo`` command that have to do with runs."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from coevo_gym.benchmark import benchmark_specs
from coevo_gym.errors import CoevoError, ConfigError, TaskError
from coevo_gym.run.folder import RUNS, RunFolder
from coevo_gym.run.progress import RunProgress
from coevo_gym.run.stop import INTERRUPTED, Stopped, StopRequest

if TYPE_CHECKING:
    from coevo_gym.config import RunConfig
    from coevo_gym.report.data import TableRow
    from coevo_gym.run.train import Summary

console = Console()
errors = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Source = Annotated[
    str, typer.Argument(metavar="PRESET_OR_TOML", help="Name of a preset, or a .toml file.")
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run, or its folder.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
]

config_app = typer.Typer(help="Look at settings.", no_args_is_help=True)


def add_commands(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    for verb in (train, resume, evaluate, tasks, report):
        app.command(name=_NAMES.get(verb, verb.__name__))(verb)
    app.add_typer(config_app, name="config")


def train(
    source: Source,
    name: Annotated[str | None, typer.Option(help="Name of the run's folder in runs/.")] = None,
    sets: Sets = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete an earlier run of this name.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the run would do and need; start nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a policy with each of a preset's curricula and compare them on held-out tasks.

    Everything goes to runs/NAME. Ctrl-C stops after the step and saves; `coevo resume` goes on.

    For example:

      coevo train quickstart

      coevo train quickstart --name longer --set loop.max_env_steps=80000 --set seed=1

      coevo train coevolve_bfcl_qwen3_4b --dry-run
    """
    from coevo_gym.config import load_config

    resolved = load_config(source, sets=[*(sets or ()), *([f"name={name}"] if name else ())])
    if dry_run:
        _print_plan(resolved.config, as_json)
        return
    if as_json:
        raise ConfigError("--json prints a plan: pass it with --dry-run.")
    from coevo_gym.run.train import train as train_run

    folder = RunFolder(RUNS / resolved.config.name)
    _finish(
        folder,
        lambda progress, stop: train_run(folder, resolved, progress, stop, overwrite=overwrite),
    )


def resume(run: RunName) -> None:
    """Go on with a run that was stopped, from its last checkpoint.

    For example: coevo resume quickstart
    """
    from coevo_gym.run.train import resume as resume_run

    folder = RunFolder.of(run)
    _finish(folder, lambda progress, stop: resume_run(folder, progress, stop))


def evaluate(
    source: Annotated[
        str, typer.Argument(metavar="BENCHMARK_OR_RUN", help="Name of a benchmark or of a run.")
    ],
    policy: Annotated[
        str | None,
        typer.Option(
            help="Of a run: an arm (default: the last), warm-up, random or scripted. Of a "
            "benchmark: transformers:MODEL, vllm:MODEL, openai:MODEL, random or scripted."
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "val",
    sets: Sets = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="Pass the env an argument; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a policy of a run, a language model as it is, or a baseline, on a split.

    For example:

      coevo eval quickstart --split test

      coevo eval webshop --policy transformers:smollm2 --set evaluation.n_tasks=20

      coevo eval alfworld --policy openai:my-model --set policy.endpoint.base_url=http://localhost/v1

      coevo eval bfcl --policy scripted --split test --env scheme=all200
    """
    from coevo_gym.run.evaluation import evaluate_model, evaluate_policy

    if source in {spec.name for spec in benchmark_specs()}:
        with RunProgress(errors) as progress, _logging(progress):
            given = {"sets": sets or (), "env": env or ()}
            row = evaluate_model(source, policy, split, progress, **given)
    elif sets or env:
        raise ConfigError(
            "--set and --env are for a benchmark; a run is evaluated with its own settings."
        )
    else:
        row = evaluate_policy(RunFolder.of(source), policy, split)
    if as_json:
        _print_json({**asdict(row), "split": split})
    else:
        console.print(_table([row], split))


def tasks(
    source: Annotated[
        str, typer.Argument(metavar="BENCHMARK_OR_RUN", help="Name of a benchmark or of a run.")
    ],
    split: Annotated[str, typer.Option(help="train, val or test.")] = "train",
    subset: Annotated[str | None, typer.Option(help="The benchmark's name for a part.")] = None,
    evolved: Annotated[
        bool, typer.Option("--evolved", help="Of a run: only tasks that evolved, with lineage.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List a benchmark's tasks, or the tasks of a run with how they came to be.

    For example:

      coevo tasks webshop --split val

      coevo tasks quickstart --evolved --json
    """
    from coevo_gym.run.listing import native_rows, run_rows

    known = native_rows(source, split, subset)
    rows = known if known is not None else run_rows(RunFolder.of(source), evolved=evolved)
    if as_json:
        _print_json(rows)
    else:
        _print_tasks(rows)


def report(
    run: RunName,
    picture: Annotated[
        Path | None,
        typer.Option(help="Also write success and pool size as one SVG picture, to this file."),
    ] = None,
) -> None:
    """Draw a run's report.html anew, also while it is training.

    For example:

      coevo report quickstart

      coevo report quickstart --picture success.svg
    """
    folder = RunFolder.of(run)
    console.print(f"Report: {write_report(folder)}", markup=False, soft_wrap=True)
    if picture is not None:
        write_picture(folder, picture)
        console.print(f"Picture: {picture}", markup=False, soft_wrap=True)


_NAMES: dict[Callable[..., None], str] = {evaluate: "eval"}


@config_app.command("show")
def show(source: Source, sets: Sets = None, as_json: AsJson = False) -> None:
    """Print all settings with the origin of each value.

    For example: coevo config show quickstart --set seed=1
    """
    from coevo_gym.config import load_config

    rows = load_config(source, sets=sets or ()).rows()
    if as_json:
        _print_json([{"key": key, "value": value, "origin": origin} for key, value, origin in rows])
        return
    table = Table("setting", "value", "from")
    for key, value, origin in rows:
        table.add_row(key, _cell(value), escape(origin), style="" if origin != "default" else "dim")
    console.print(table)


def write_report(folder: RunFolder) -> Path:
    """Draw a run's report; returns where it is."""
    from coevo_gym.report.render import render_report
    from coevo_gym.run.folder import write_atomic
    from coevo_gym.run.report_data import load_report_data

    write_atomic(folder.report, render_report(load_report_data(folder)).encode())
    return folder.report


def write_picture(folder: RunFolder, path: Path) -> None:
    """Draw a run's success and pool size over env steps as a standalone SVG."""
    from coevo_gym.report.render import render_picture
    from coevo_gym.run.folder import write_atomic
    from coevo_gym.run.report_data import load_report_data

    write_atomic(path, render_picture(load_report_data(folder)).encode())


def _finish(folder: RunFolder, work: Callable[[RunProgress, StopRequest], Summary]) -> None:
    """Do the work of a run, and end with its table and report, or with how to go on."""
    hint = f"coevo resume {folder.path.name}"
    with RunProgress(console) as progress, _logging(progress), StopRequest() as stop:
        try:
            summary = work(progress, stop)
        except Stopped:
            progress.say(f"Stopped and saved. Go on with: {hint}")
            raise typer.Exit(INTERRUPTED) from None
        except (ConfigError, TaskError):
            raise
        except CoevoError as error:
            if folder.manifest.is_file():
                error.add_note(f"Go on with: {hint}")
            raise
    console.print(_table(summary.table, summary.split))
    console.print(f"Report: {write_report(folder)}", markup=False, soft_wrap=True)


def _print_plan(config: RunConfig, as_json: bool) -> None:
    from coevo_gym.run.plan import plan, rows

    planned = plan(config)
    if as_json:
        _print_json(asdict(planned))
        return
    table = Table("what", "how much", box=None)
    for what, how_much in rows(config, planned):
        table.add_row(what, escape(how_much))
    console.print(table)


def _table(rows: Any, split: str) -> Table:
    policy = Column("policy", overflow="fold")
    table = Table(
        policy, f"success on {split}", "95 % interval", "mean score", "tasks", "env steps"
    )
    for row in rows:
        table.add_row(*_cells(row))
    return table


_PIPE_WIDTH = 200
_LONG_COLUMNS = ("id", "actions", "parents", "split")


def _print_tasks(rows: list[dict[str, Any]]) -> None:
    columns = [key for key in rows[0] if key not in _LONG_COLUMNS] if rows else ["name"]
    table = Table(box=None, expand=True)
    for column in columns:
        longest = max((len(str(row[column])) for row in rows), default=0)
        flexible = column == "instruction"  # all else is short, and there to be copied
        table.add_column(
            column,
            no_wrap=True,
            ratio=1 if flexible else None,
            min_width=None if flexible else longest,
        )
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    wide = console if console.is_terminal else Console(width=_PIPE_WIDTH)
    wide.print(table)
    wide.print(f"{len(rows)} tasks; --json prints all of each.", style="dim")


def _cells(row: TableRow) -> tuple[str, ...]:
    return (
        row.name,
        f"{row.success:.1%}",
        f"{row.low:.1%} – {row.high:.1%}",
        f"{row.score:.3f}",
        str(row.n_tasks),
        f"{row.env_steps:,}",
    )


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return escape(", ".join(str(item) for item in value))
    return "none" if value is None else escape(str(value))


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


class _ToProgress(logging.Handler):
    """Shows warnings above the live line."""

    def __init__(self, progress: RunProgress) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self._progress.say(f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def _logging(progress: RunProgress) -> Iterator[None]:
    handler, logger = _ToProgress(progress), logging.getLogger("coevo_gym")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
